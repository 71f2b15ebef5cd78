import dataclasses
from collections.abc import Callable, Mapping

from keras_vit.data.source import tf


@dataclasses.dataclass(frozen=True)
class Task:
    """One of the 19 tasks of VTAB-1k: 800 images to train on, 200 to validate, or all 1,000, and the whole test set.

    Args:
        dataset: Its name in TFDS, with the configuration.
        group: "natural", "specialized" or "structured".
        num_classes: Integer.
        label: The feature that holds the label, or a function from a record to it.
        validation: The TFDS split whose first 200 images are for validation, or the percentage of "train" at which
            they begin.
        test: The TFDS split for the test, or the percentages of "train" that come before it.
        gain: The factor that takes an image's values to 0..255.
    """

    dataset: str
    group: str
    num_classes: int
    label: str | Callable = "label"
    validation: str | int = "validation"
    test: str | tuple[int, int] = "test"
    gain: int = 1

    def split(self, name: str, counts: Mapping[str, int]) -> str:
        """The TFDS split for "train800", "val200", "train800val200" or "test", given the sizes of the TFDS splits.

        >>> import keras_vit.data
        >>> keras_vit.data.VTAB["cifar100"].split("train800val200", {"train": 50000})
        'train[:800]+train[45000:45200]'
        """
        if isinstance(self.validation, int):
            start = self.validation * counts["train"] // 100
            validation = f"train[{start}:{start + 200}]"
        else:
            validation = f"{self.validation}[:200]"
        test = self.test
        if isinstance(test, tuple):
            test = f"train[{sum(percent * counts['train'] // 100 for percent in test)}:]"
        splits = {"train800": "train[:800]", "val200": validation, "test": test}
        splits["train800val200"] = f"{splits['train800']}+{validation}"
        if name not in splits:
            raise ValueError(f"Expected `split` of a VTAB-1k task to be one of {sorted(splits)}. Received: {name!r}")
        return splits[name]


def _clevr_count(record):
    # Scenes hold 3 to 10 objects.
    return tf.size(record["objects"]["size"]) - 3


def _clevr_distance(record):
    nearest = tf.reduce_min(record["objects"]["pixel_coords"][:, 2])
    return tf.reduce_sum(tf.cast(nearest > [8.0, 8.5, 9.0, 9.5, 10.0], "int32"))


def _kitti_distance(record):
    # Cars, vans and trucks; the last class has none.
    depth = tf.boolean_mask(record["objects"]["location"][:, 2], record["objects"]["type"] < 3)
    nearest = tf.reduce_min(tf.concat([depth, [1000.0]], 0))
    return tf.reduce_sum(tf.cast(nearest > [8.0, 20.0, 999.0], "int32"))


def _dsprites(feature, num_values):
    """Groups the values of a feature into 16 classes."""
    return lambda record: record[feature] * 16 // num_values


# Named as in big_vision.
VTAB = {
    "caltech101": Task("caltech101", "natural", 102, validation=90),
    "cifar100": Task("cifar100", "natural", 100, validation=90),
    "dtd": Task("dtd", "natural", 47),
    "oxford_flowers102": Task("oxford_flowers102", "natural", 102),
    "oxford_iiit_pet": Task("oxford_iiit_pet", "natural", 37, validation=90),
    "sun397": Task("sun397/tfds", "natural", 397),
    "svhn_cropped": Task("svhn_cropped", "natural", 10, validation=90),
    "diabetic_retinopathy": Task("diabetic_retinopathy_detection/btgraham-300", "specialized", 5),
    "eurosat": Task("eurosat/rgb", "specialized", 10, validation=60, test=(60, 20)),
    "patch_camelyon": Task("patch_camelyon", "specialized", 2),
    "resisc45": Task("resisc45", "specialized", 45, validation=60, test=(60, 20)),
    "clevr_closest": Task("clevr", "structured", 6, _clevr_distance, validation=90, test="validation"),
    "clevr_count": Task("clevr", "structured", 8, _clevr_count, validation=90, test="validation"),
    "dmlab": Task("dmlab", "structured", 6),
    "dsprites_location": Task("dsprites", "structured", 16, _dsprites("label_x_position", 32), 80, (80, 10), 255),
    "dsprites_orientation": Task("dsprites", "structured", 16, _dsprites("label_orientation", 40), 80, (80, 10), 255),
    "kitti": Task("kitti", "structured", 4, _kitti_distance),
    "smallnorb_azimuth": Task("smallnorb", "structured", 18, "label_azimuth", "test", "test[50%:]"),
    "smallnorb_elevation": Task("smallnorb", "structured", 9, "label_elevation", "test", "test[50%:]"),
}
