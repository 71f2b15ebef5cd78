import dataclasses
from collections.abc import Callable, Mapping

from keras_vit.data.source import tf


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of VTAB-1k: 800 training images, 200 validation images, and the full test set."""

    dataset: str
    group: str
    num_classes: int
    label: str | Callable = "label"
    validation: str | int = "validation"  # a TFDS split, or the percentage of "train" at which the 200 images start
    test: str | tuple[int, int] = "test"  # a TFDS split, or the percentages of "train" before it
    gain: int = 1  # scales pixel values to 0..255

    def split(self, name: str, counts: Mapping[str, int]) -> str:
        """Returns the TFDS split for "train800", "val200", "train800val200" or "test" from the TFDS splits' sizes."""
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
    # Scenes have 3 to 10 objects.
    return tf.size(record["objects"]["size"]) - 3


def _clevr_distance(record):
    nearest = tf.reduce_min(record["objects"]["pixel_coords"][:, 2])
    return tf.reduce_sum(tf.cast(nearest > [8.0, 8.5, 9.0, 9.5, 10.0], "int32"))


def _kitti_distance(record):
    # Use the nearest car, van or truck. The last class is for images without these vehicles.
    depth = tf.boolean_mask(record["objects"]["location"][:, 2], record["objects"]["type"] < 3)
    nearest = tf.reduce_min(tf.concat([depth, [1000.0]], 0))
    return tf.reduce_sum(tf.cast(nearest > [8.0, 20.0, 999.0], "int32"))


def _dsprites(feature, num_values):
    """Bins the values of a feature into 16 classes."""
    return lambda record: record[feature] * 16 // num_values


# The names are from big_vision.
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
"""The 19 tasks of VTAB by name; `load("vtab/...")` reads one."""
