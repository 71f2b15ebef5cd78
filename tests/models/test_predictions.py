import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.models.predictions import imagenet_classes


def test_names_come_in_the_order_of_the_logits(shared):
    lines = (shared / "data" / "imagenet1k_classes.txt").read_text().splitlines()
    assert [" ".join(pair) for pair in imagenet_classes()] == lines
    assert len({wnid for wnid, _ in imagenet_classes()}) == 1000


def test_best_first():
    p = np.full((2, 1000), 0.1 / 997)
    p[0, [285, 281, 7]] = 0.6, 0.2, 0.1
    p[1, [0, 1, 999]] = 0.1, 0.2, 0.6
    first, second = keras_vit.decode_predictions(ops.convert_to_tensor(p.astype("float32")), top=2)
    assert [name for _, name, _ in first] == ["Egyptian_cat", "tabby"]
    assert [(wnid, round(score, 4)) for wnid, _, score in second] == [("n15075141", 0.6), ("n01443537", 0.2)]


def test_logits_are_refused_with_the_hint():
    for bad in (np.random.default_rng(0).normal(size=(1, 1000)), np.zeros((1, 1000)), np.full((1, 1000), np.nan)):
        with pytest.raises(ValueError, match="softmax"):
            keras_vit.decode_predictions(bad)


@pytest.mark.parametrize("shape", [(1000,), (1, 999), (1, 1, 1000)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"shape \(batch, 1000\)"):
        keras_vit.decode_predictions(np.full(shape, 0.001))


@pytest.mark.parametrize("top", [0, 1001])
def test_top_is_bounded(top):
    with pytest.raises(ValueError, match="`top`"):
        keras_vit.decode_predictions(np.eye(1000)[:1], top=top)
