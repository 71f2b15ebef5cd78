import dataclasses

import keras

from keras_vit import arguments
from keras_vit.data.keras_layers import mixes
from keras_vit.data.operations import OFFICIAL, TIMM
from keras_vit.data.source import tf

# {set of RandAugment operations: the largest magnitude of its operations}.
STRONGEST = {"official": 30, "timm": 10}


@dataclasses.dataclass(frozen=True)
class Policy:
    """Settings of the augmentation of images and labels, except for the crop and the flip.

    `POLICIES` contains the policies of the AugReg paper ("none", "light1", "light2", "medium1", "medium2", "strong1",
    "strong2"), "deit" and "coatnet".

    Args:
        randaugment: (operations per image, magnitude), or None. `RandAugment` describes both numbers, and also
            `magnitude_std`.
        mixup, cutmix: Floats in [0, 1], the alphas of MixUp and CutMix; 0 for none. With both, each batch gets one of
            the two with equal probability.
        erasing: Float in [0, 1], the probability of filling a random rectangle of an image with normal noise.
        repeats: Integer, the number of copies of each image in an epoch. The copies follow each other and are augmented
            differently. An epoch then contains only `1 / repeats` of the images, as in DeiT.
        label_smoothing: Float in [0, 1), the share of each label that is spread over all classes.
        operations: "official": the 16 operations of big_vision, as in AugReg. "timm": the 15 operations of timm's
            "rand-...-inc1", as in DeiT; each is skipped with probability 0.5.

    Example:
    >>> import keras_vit.data
    >>> policy = keras_vit.data.POLICIES["deit"]
    >>> policy.randaugment, policy.magnitude_std, policy.operations
    ((2, 9), 0.5, 'timm')

    Reference: arXiv 2106.10270, section 3.2 and figure 4; arXiv 2012.12877, table 9; arXiv 2106.04803, table 10.
    """

    randaugment: tuple[int, float] | None = None
    magnitude_std: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    erasing: float = 0.0
    repeats: int = 1
    label_smoothing: float = 0.0
    operations: str = "official"

    def __post_init__(self):
        for name in ("mixup", "cutmix", "erasing"):
            arguments.share(name, getattr(self, name))
        arguments.rate("label_smoothing", self.label_smoothing)
        most = STRONGEST[arguments.choice("operations", self.operations, tuple(STRONGEST))]
        numbers = (1, 0) if self.randaugment is None else self.randaugment
        is_pair = isinstance(numbers, (tuple, list)) and len(numbers) == 2 and all(map(arguments.is_number, numbers))
        if not is_pair or not (numbers[0] >= 1 and 0 <= numbers[1] <= most):
            raise arguments.invalid("randaugment", f"(operations >= 1, magnitude of 0 to {most})", self.randaugment)
        arguments.non_negative_number("magnitude_std", self.magnitude_std)
        arguments.positive_int("repeats", self.repeats)

    @property
    def mixes(self) -> bool:
        """True if the policy needs one-hot labels, because it mixes or smooths them."""
        return bool(self.mixup or self.cutmix or self.label_smoothing)


POLICIES = {
    "none": Policy(),
    "light1": Policy(randaugment=(2, 0)),
    "light2": Policy(randaugment=(2, 10), mixup=0.2),
    "medium1": Policy(randaugment=(2, 15), mixup=0.2),
    "medium2": Policy(randaugment=(2, 15), mixup=0.5),
    "strong1": Policy(randaugment=(2, 20), mixup=0.5),
    "strong2": Policy(randaugment=(2, 20), mixup=0.8),
    "coatnet": Policy(randaugment=(2, 15), mixup=0.8),
    "deit": Policy((2, 9), 0.5, mixup=0.8, cutmix=1.0, erasing=0.25, repeats=3, label_smoothing=0.1, operations="timm"),
}
"""The policies by name: seven from AugReg, one from CoAtNet and one from DeiT."""


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """The parts of the argument `augment`: a policy, layers for single images, and layers that mix images."""

    policy: Policy = POLICIES["none"]
    layers: tuple[keras.layers.Layer, ...] = ()
    mixers: tuple[keras.layers.Layer, ...] = ()

    @property
    def mixes(self):
        """True if the augmentation needs one-hot labels, because it mixes or smooths them."""
        return self.policy.mixes or bool(self.mixers)


def augmentation(value):
    """Returns the `Augmentation` for a value of `augment`: a policy, its name, a layer, a list of these, or None."""
    parts = list(value) if isinstance(value, (list, tuple)) else [] if value is None else [value]
    layers = [part for part in parts if isinstance(part, keras.layers.Layer)]
    policies = [part for part in parts if not isinstance(part, keras.layers.Layer)]
    if len(policies) > 1:
        raise arguments.invalid("augment", "a list of layers and at most one `Policy`", value)
    policy = policies[0] if policies else "none"
    if not isinstance(policy, Policy):
        if not isinstance(policy, str):
            raise arguments.invalid("augment", "a policy, its name, or layers of Keras or keras-cv", policy)
        policy = POLICIES[arguments.choice("augment", policy, tuple(POLICIES))]
    single = tuple(layer for layer in layers if not mixes(layer))
    return Augmentation(policy, single, tuple(layer for layer in layers if mixes(layer)))


class RandAugment:
    """Applies random operations to an image, as in big_vision or timm. The seed determines the operations.

    Args:
        num_operations: Integer, operations per image.
        magnitude, magnitude_std: Floats, the mean and standard deviation of the random magnitude. The magnitude is
            clipped to [0, 30] for "official" and to [0, 10] for "timm".
        operations: "official" or "timm"; see `Policy`.

    Call arguments: image: Float32 tensor (height, width, 3) of 0..255. Its values are first rounded down ("official")
    or to the nearest integer ("timm"). seed: Integer tensor (2,). The result has the shape and range of the image.

    Reference: arXiv 1909.13719. The operations give exactly the pixels of big_vision and timm, except for timm's
    rotation, shear and translation: 99.7 % of these pixels are equal, and the rest differ by 1 of 255.
    """

    def __init__(self, num_operations: int, magnitude: float, magnitude_std: float = 0.0, operations: str = "official"):
        self.num_operations = arguments.positive_int("num_operations", num_operations)
        self.magnitude = arguments.non_negative_number("magnitude", magnitude)
        self.std = arguments.non_negative_number("magnitude_std", magnitude_std)
        arguments.choice("operations", operations, tuple(STRONGEST))
        # timm applies each operation with probability 0.5.
        table, self.share, self.rounding = {"official": (OFFICIAL, 1.0, 0.0), "timm": (TIMM, 0.5, 0.5)}[operations]
        self.operations, self.strongest = list(table.values()), STRONGEST[operations]
        # TensorFlow traces this function only once, and not again for each operation of an image.
        self._one = tf.function(self._apply, autograph=False, experimental_attributes={"_noinline": True})

    def __call__(self, image: "tf.Tensor", seed: "tf.Tensor") -> "tf.Tensor":
        seed, count = tf.cast(seed, "int64"), self.num_operations
        numbers = tf.unstack(tf.random.stateless_uniform((count, 4), seed))
        levels = tf.random.stateless_normal((count,), tf.random.fold_in(seed, 1), self.magnitude, self.std, "float64")
        m = tf.clip_by_value(levels, 0.0, self.strongest) / 10
        x = tf.cast(image + self.rounding, "uint8")
        for i, (chosen, sign, *at) in enumerate(map(tf.unstack, numbers)):
            kind = tf.cast(chosen * (len(self.operations) / self.share), "int32")
            sign = tf.cast(tf.where(sign < 0.5, -1, 1), "float64")
            x = tf.ensure_shape(self._one(kind, x, m[i], sign, tf.stack(at)), image.shape)
        return tf.cast(x, "float32")

    def _apply(self, kind, *arguments):
        # If the index is beyond the last operation, the image stays unchanged.
        return tf.switch_case(kind, [lambda f=f: f(*arguments) for f in self.operations], lambda: arguments[0])
