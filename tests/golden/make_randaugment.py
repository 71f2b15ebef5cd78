"""Makes randaugment.npz: the results of RandAugment's official operations for one small picture.

Needs checkouts of google-research/big_vision and huggingface/pytorch-image-models, of which only autoaugment.py and
auto_augment.py are run. It also needs packages of their day, since the newest NumPy refuses a threshold of 256 for a
byte, and the newest Pillow a picture of no bits. In an environment of Python 3.11:

    pip install "tensorflow-cpu==2.12.*" "tensorflow-addons==0.21.*" "numpy<1.24" "pillow<11"
    python tests/golden/make_randaugment.py path/to/big_vision path/to/pytorch-image-models picture.png

The file holds the picture, "names" as "family/operation/level", with a "-" at the end where the sign that is drawn is
negative, and "images" in their order.
"""

import importlib.util
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import tensorflow as tf
from PIL import Image

OFFICIAL_LEVELS, TIMM_LEVELS = (0, 1, 5, 9, 10, 15, 20, 30), (0, 5, 9, 10)
CUTOUT_CENTRE = (9, 3)


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def official(autoaugment, picture):
    """Yields (name, image) for the operations of big_vision."""
    settings = autoaugment.HParams(cutout_const=40, translate_const=100)

    def apply(name, level, draws):
        """Returns the image and the number of draws that the operation used."""
        left = []

        def transform(image, *draws):
            left[:] = draws
            with mock.patch.object(autoaugment.tf, "random_uniform", lambda *_, **__: left.pop(0)):
                function, _, args = autoaugment._parse_policy_info(name, 1.0, float(level), [128] * 3, settings)
                return function(image, *args)

        # The official code runs in a graph whose random numbers are not constants.
        image = tf.function(transform, autograph=False)(tf.constant(picture), *map(tf.constant, draws))
        return image.numpy(), len(draws) - len(left)

    for name in autoaugment.NAME_TO_FUNC:
        for level in OFFICIAL_LEVELS:
            if name == "Cutout":
                yield f"official/{name}/{level}", apply(name, level, CUTOUT_CENTRE)[0]
                continue
            image, asked = apply(name, level, (0.9,))
            yield f"official/{name}/{level}", image
            if asked:
                yield f"official/{name}/{level}-", apply(name, level, (0.1,))[0]


def timm(auto_augment, picture):
    """Yields (name, image) for the operations of "rand-m9-mstd0.5-inc1", as DeiT's code sets it up."""
    settings = {"img_mean": (124, 116, 104), "interpolation": Image.Resampling.BICUBIC}
    for name in auto_augment._RAND_INCREASING_TRANSFORMS:
        for sign, draw in (("", 0.1), ("-", 0.9)):
            for level in TIMM_LEVELS:
                operation = auto_augment.AugmentOp(name, prob=1.0, magnitude=level, hparams=settings)
                with mock.patch.object(auto_augment.random, "random", return_value=draw) as drawn:
                    image = np.asarray(operation(Image.fromarray(picture)))
                if drawn.called or not sign:
                    yield f"timm/{name.removesuffix('Increasing').removesuffix('Rel')}/{level}{sign}", image


def main(big_vision, pytorch_image_models, path):
    picture = np.asarray(Image.open(path).convert("RGB").crop((60, 160, 220, 352)).resize((16, 20)))
    autoaugment = module(Path(big_vision, "big_vision/pp/autoaugment.py"))
    auto_augment = module(Path(pytorch_image_models, "timm/data/auto_augment.py"))
    names, images = zip(*official(autoaugment, picture), *timm(auto_augment, picture), strict=True)
    # Separate arrays would each need a header in the file.
    file = Path(__file__).with_name("randaugment.npz")
    np.savez_compressed(file, picture=picture, names=names, images=images)


if __name__ == "__main__":
    main(*sys.argv[1:])
