import dataclasses

from keras_vit.data.operations import OFFICIAL, TIMM
from keras_vit.data.source import tf

# The families of RandAugment's operations, and the largest magnitude of each.
STRONGEST = {"official": 30, "timm": 10}


@dataclasses.dataclass(frozen=True)
class Policy:
    """The augmentation of images and labels beyond the crop and the flip.

    `POLICIES` names those of the AugReg paper ("none", "light1", "light2", "medium1", "medium2", "strong1", "strong2")
    and "deit". See `RandAugment` and `Mix`; random erasing is Keras' own layer.

    Args:
        randaugment: (operations an image, magnitude), or None. The magnitude is from 0 to 30 for the operations of
            "official", from 0 to 10 for those of "timm".
        magnitude_std: Float, the standard deviation of the magnitude.
        mixup: Float in [0, 1], the alpha of MixUp's Beta distribution, 0 for none.
        cutmix: Float in [0, 1], the alpha of CutMix. With both, each batch gets one of them with equal chances.
        erasing: Float in [0, 1], the share of images in which a rectangle is erased.
        repeats: Integer, how many copies of an image, each differently augmented, follow each other in a batch. An
            epoch then has `1 / repeats` of the images, as in DeiT.
        label_smoothing: Float in [0, 1), the share of a label that is spread over all the classes.
        operations: RandAugment's. "official": the 16 of the official code, as in AugReg; "timm": the 15 of timm's
            "rand-...-inc1", as in DeiT, which get stronger with the magnitude, and are each skipped half of the time.

    Example:

    >>> import keras_vit.data
    >>> policy = keras_vit.data.POLICIES["deit"]
    >>> policy.randaugment, policy.magnitude_std, policy.operations
    ((2, 9), 0.5, 'timm')

    Reference: arXiv 2106.10270, section 3.2 and figure 4; arXiv 2012.12877, table 9. `RandomErasing` differs: it fills
    with normal noise of deviation 255 around black, clipped to 0..255, and draws both sides independently; DeiT takes
    noise of the images' mean and deviation, and draws area and shape.
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
        for name in ("mixup", "cutmix", "erasing", "label_smoothing"):
            if not 0 <= getattr(self, name) <= 1 - (name == "label_smoothing") * 1e-6:
                raise ValueError(f"Expected `{name}` from 0 to 1. Received: {getattr(self, name)!r}")
        if self.operations not in STRONGEST:
            raise ValueError(
                f"Expected `operations` to be one of {', '.join(STRONGEST)}. Received: {self.operations!r}"
            )
        most = STRONGEST[self.operations]
        if self.randaugment and not (self.randaugment[0] >= 1 and 0 <= self.randaugment[1] <= most):
            raise ValueError(
                f"Expected `randaugment` as (at least 1, 0 to {most}) for the operations {self.operations!r}. "
                f"Received: {self.randaugment!r}"
            )
        if self.magnitude_std < 0:
            raise ValueError(f"Expected `magnitude_std` of at least 0. Received: {self.magnitude_std!r}")
        if not isinstance(self.repeats, int) or self.repeats < 1:
            raise ValueError(f"Expected `repeats` to be an integer of at least 1. Received: {self.repeats!r}")

    @property
    def mixes(self) -> bool:
        """Whether labels become a share for each class."""
        return bool(self.mixup or self.cutmix or self.label_smoothing)


POLICIES = {
    "none": Policy(),
    "light1": Policy(randaugment=(2, 0)),
    "light2": Policy(randaugment=(2, 10), mixup=0.2),
    "medium1": Policy(randaugment=(2, 15), mixup=0.2),
    "medium2": Policy(randaugment=(2, 15), mixup=0.5),
    "strong1": Policy(randaugment=(2, 20), mixup=0.5),
    "strong2": Policy(randaugment=(2, 20), mixup=0.8),
    "deit": Policy((2, 9), 0.5, mixup=0.8, cutmix=1.0, erasing=0.25, repeats=3, label_smoothing=0.1, operations="timm"),
}


class RandAugment:
    """Applies random operations to an image, drawn from a stateless seed, as one of the official codes does.

    Args:
        num_operations: Integer, operations an image.
        magnitude: Float, in [0, 30] for "official" and in [0, 10] for "timm".
        magnitude_std: Float, the standard deviation of the magnitude, which is clipped to that range.
        operations: "official" or "timm"; see `Policy`.

    Call arguments:
        image: Float32 tensor (height, width, 3) of 0..255, which is rounded as in the codes: down by "official", to the
            nearest integer by "timm".
        seed: Integer tensor (2,).

    Returns:
        The augmented image, of the same shape and range, in whole numbers.

    Reference: arXiv 1909.13719. At each magnitude, the operations give the same bits as the official codes, except the
    warps of "timm": 99.7 % of the pixels are those of Pillow's bicubic filter, and the others differ by 1 of 255.
    """

    def __init__(self, num_operations: int, magnitude: float, magnitude_std: float = 0.0, operations: str = "official"):
        self.num_operations, self.magnitude, self.std = num_operations, magnitude, magnitude_std
        # timm skips each operation half of the time.
        table, self.share, self.rounding = {"official": (OFFICIAL, 1.0, 0.0), "timm": (TIMM, 0.5, 0.5)}[operations]
        self.operations, self.strongest = list(table.values()), STRONGEST[operations]
        # Traced once for all operations of an image.
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
        # Numbers beyond the operations leave the image as it is.
        return tf.switch_case(kind, [lambda f=f: f(*arguments) for f in self.operations], lambda: arguments[0])
