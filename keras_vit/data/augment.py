import dataclasses

import keras


@dataclasses.dataclass(frozen=True)
class Policy:
    """What augments the images and labels beyond the crop and the flip; all of it from stateless seeds.

    `POLICIES` names those of the AugReg paper ("none", "light1", "light2", "medium1", "medium2", "strong1", "strong2")
    and "deit". RandAugment runs the operations of keras-cv; erasing, MixUp and CutMix are Keras' own layers.

    Args:
        randaugment: (operations an image, magnitude), or None. Magnitude 30 is the strongest that keras-cv knows: a
            shear of 1 and a shift of the whole side.
        magnitude_std: Float, the standard deviation of the magnitude.
        mixup: Float, the alpha of the Beta distribution of MixUp, 0 for none.
        cutmix: Float, that of CutMix. Where both are given, each batch gets one of them with equal chances.
        erasing: Float, the share of images in which a rectangle is erased.
        repeats: Integer, how many copies of an image, each differently augmented, follow each other in a batch. An
            epoch then has `1 / repeats` of the images, as in DeiT.
        label_smoothing: Float in [0, 1), the share of a label that is spread over all the classes.

    Example:

    >>> import keras_vit.data
    >>> keras_vit.data.POLICIES["medium1"]
    Policy(randaugment=(2, 15), magnitude_std=0.0, mixup=0.2, cutmix=0.0, erasing=0.0, repeats=1, label_smoothing=0.0)

    Reference: arXiv 2106.10270, section 3.2 and figure 4; arXiv 2012.12877, table 9. Both papers' RandAugment has other
    operations as well (posterize, rotate, invert, cutout, sharpness), and shears by 0.03 a unit of magnitude.
    """

    randaugment: tuple[int, float] | None = None
    magnitude_std: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    erasing: float = 0.0
    repeats: int = 1
    label_smoothing: float = 0.0

    def __post_init__(self):
        for name in ("mixup", "cutmix", "erasing", "label_smoothing"):
            if not 0 <= getattr(self, name) <= 1 - (name == "label_smoothing") * 1e-6:
                raise ValueError(f"Expected `{name}` from 0 to 1. Received: {getattr(self, name)!r}")
        if self.randaugment and not (self.randaugment[0] >= 1 and 0 <= self.randaugment[1] <= 30):
            raise ValueError(f"Expected `randaugment` as (at least 1, 0 to 30). Received: {self.randaugment!r}")
        if not isinstance(self.repeats, int) or self.repeats < 1:
            raise ValueError(f"Expected `repeats` to be an integer of at least 1. Received: {self.repeats!r}")


POLICIES = {
    "none": Policy(),
    "light1": Policy(randaugment=(2, 0)),
    "light2": Policy(randaugment=(2, 10), mixup=0.2),
    "medium1": Policy(randaugment=(2, 15), mixup=0.2),
    "medium2": Policy(randaugment=(2, 15), mixup=0.5),
    "strong1": Policy(randaugment=(2, 20), mixup=0.5),
    "strong2": Policy(randaugment=(2, 20), mixup=0.8),
    "deit": Policy((2, 9), 0.5, mixup=0.8, cutmix=1.0, erasing=0.25, repeats=3, label_smoothing=0.1),
}


class RandAugment:
    """Applies random operations of keras-cv to an image, each drawn from a stateless seed.

    keras-cv's own RandAugment cannot be repeated inside tf.data: it draws from the state of global generators, in
    whatever order the threads come. Here the numbers follow from the seed, and only the pixels are its business.

    Args:
        num_operations: Integer, operations an image.
        magnitude: Float in [0, 30].
        magnitude_std: Float, its standard deviation.

    Call arguments:
        image: Float32 tensor (height, width, 3) of 0..255.
        seed: Integer tensor (2,).

    Returns:
        The augmented image, of the same shape and range.

    Reference: arXiv 1909.13719. The ranges are those of `keras_cv.layers.RandAugment`; what a shear or a shift
    uncovers is gray, as in the original.
    """

    def __init__(self, num_operations, magnitude, magnitude_std=0.0):
        import keras_cv
        import tensorflow as tf

        layer, limits, gray = keras_cv.layers, (0, 255), {"fill_mode": "constant", "fill_value": 128.0}
        self.num_operations, self.magnitude, self.std = num_operations, magnitude / 30, magnitude_std / 30
        contrast, brightness = layer.RandomContrast(limits, 0.5), layer.RandomBrightness(0.5, limits)
        shear, shift = layer.RandomShear(0.0, 0.0, **gray), layer.RandomTranslation(0.0, 0.0, **gray)
        gain, solar = layer.RandomColorDegeneration(0.5), layer.Solarization(limits)
        equal, auto = layer.Equalization(limits), layer.AutoContrast(limits)

        def at(value, rank):
            return tf.reshape(value, (1,) * rank)

        # Each takes the image, the magnitude m of 0..1, its sign s, and u in [-m, m].
        self._operations = [
            lambda x, m, s, u: auto.augment_images(x),
            lambda x, m, s, u: equal.augment_images(x),
            lambda x, m, s, u: solar.augment_images(
                x, {"additions": at(110 * m, 4), "thresholds": at(255 * (1 - m), 4)}
            ),
            lambda x, m, s, u: gain.augment_images(x, at(m, 4)),
            lambda x, m, s, u: contrast.augment_images(x, at(1 + u, 4)),
            lambda x, m, s, u: brightness.augment_images(x, at(255 * u, 4)),
            lambda x, m, s, u: shear.augment_images(x, {"shear_x": at(s * m, 2), "shear_y": None}),
            lambda x, m, s, u: shear.augment_images(x, {"shear_x": None, "shear_y": at(s * m, 2)}),
            lambda x, m, s, u: shift.augment_images(
                x, {"height_translations": at(0.0, 2), "width_translations": at(u, 2)}
            ),
            lambda x, m, s, u: shift.augment_images(
                x, {"height_translations": at(u, 2), "width_translations": at(0.0, 2)}
            ),
        ]

    def __call__(self, image, seed):
        import tensorflow as tf

        x, shape = image[None], image.shape
        for one in tf.unstack(tf.random.split(tf.cast(seed, "int64"), self.num_operations)):
            kinds, noises = tf.unstack(tf.random.split(one, 2))
            kind = tf.random.stateless_uniform((), kinds, 0, len(self._operations), "int32")
            noise, sign, uniform = tf.unstack(tf.random.stateless_uniform((3,), noises, -1.0, 1.0))
            # A uniform number of that deviation; clipped as keras-cv clips its normal one.
            m = tf.clip_by_value(self.magnitude + noise * self.std * 3**0.5, 0.0, 1.0)
            arguments = (x, m, tf.sign(sign), m * uniform)
            x = tf.switch_case(kind, [lambda f=f, a=arguments: f(*a) for f in self._operations])
        return tf.ensure_shape(tf.clip_by_value(x[0], 0.0, 255.0), shape)


class _Seeds(keras.random.SeedGenerator):
    """Hands a Keras layer the seeds that follow from one seed tensor, where it would count up a variable."""

    def __init__(self, seed):
        # Not the parent's, which would create the variable.
        self.seed, self.drawn = seed, 0

    def next(self, ordered=True):
        import tensorflow as tf

        self.drawn += 1
        return tf.random.fold_in(self.seed, self.drawn)


def seeded(name, **config):
    """Makes one of Keras' random image layers a function of (inputs, seed), for use inside tf.data on any backend.

    Keras' layers count their seeds in a variable, so that with several threads, or after a restart, an image would be
    changed differently.

    Args:
        name: The layer's name in `keras.layers`: "RandomErasing", "MixUp" or "CutMix".
        **config: Its arguments.

    Returns:
        A function of the layer's inputs and an integer tensor (2,).
    """

    class Seeded(getattr(keras.layers, name)):
        def get_random_transformation(self, data, training=True, seed=None):
            return super().get_random_transformation(data, training, seed=self.draw())

    # In float32 whatever the policy says: a reduced one would round the pixels.
    layer = Seeded(**config, data_format="channels_last", dtype="float32")

    def call(inputs, seed):
        # A function, since Keras would take the seeds themselves for a part of the layer's state.
        layer.draw = lambda: _Seeds(seed)
        return layer(inputs, training=True)

    return call
