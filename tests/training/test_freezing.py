import keras
import numpy as np
import pytest

from keras_vit.training import freezing, lora
from keras_vit.training.freezing import freeze
from tests import tiny
from tests.training.test_decay_groups import MODELS


def trained_layers(model):
    return list(dict.fromkeys(v.path.split("/")[0] for v in model.trainable_variables))


@pytest.mark.parametrize(
    "blocks, expected",
    [
        (0, ["block_00", "block_01", "norm", "head"]),
        (1, ["block_01", "norm", "head"]),
        (2, ["norm", "head"]),
        (None, ["head"]),
    ],
)
def test_what_is_trained(blocks, expected):
    model = tiny.build()
    counts = freeze(model, blocks)
    assert trained_layers(model) == expected
    assert counts.trainable == sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    assert counts.trainable + counts.frozen == model.count_params()


def test_it_can_be_called_again():
    model = tiny.build()
    all_of_it = freezing.count_parameters(model)
    assert all_of_it.frozen == 0
    freeze(model)
    assert freeze(model, blocks=1).trainable > freeze(model, blocks=2).trainable
    model.get_layer("block_01").mlp.trainable = False
    freeze(model)
    assert freezing.unfreeze(model) == freezing.count_parameters(model) == all_of_it


def test_frozen_weights_stay_in_training():
    model = tiny.build()
    freeze(model, blocks=1)
    before = {v.path: keras.ops.convert_to_numpy(v).copy() for v in model.weights}
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rng = np.random.default_rng(0)
    model.fit(rng.normal(size=(4, 16, 16, 3)), np.arange(4), verbose=0)
    changed = {v.path.split("/")[0] for v in model.weights if not np.array_equal(before[v.path], v)}
    assert changed == {"block_01", "norm", "head"}


def test_both_heads_of_a_distilled_model_are_trained():
    model = MODELS["distilled"]()
    freeze(model)
    assert trained_layers(model) == ["head", "head_dist"]


def test_a_bit_and_a_hybrid():
    bit, hybrid = MODELS["bit"](), MODELS["hybrid"]()
    freeze(bit, blocks=1)
    assert trained_layers(bit) == ["stage_2_unit_01", "norm", "head"]
    freeze(hybrid, blocks=0)
    assert trained_layers(hybrid) == ["block_00", "norm", "head"]


@pytest.mark.parametrize("name", ["vit", "hybrid", "bit", "map", "relative", "qk_norm"])
def test_freezing_survives_a_reload(name, tmp_path):
    model = MODELS[name]()
    counts = freeze(model)
    model.save(tmp_path / "m.keras")
    reloaded = keras.models.load_model(tmp_path / "m.keras")
    assert freezing.count_parameters(reloaded) == counts
    assert freezing.unfreeze(reloaded) == (model.count_params(), 0)


@pytest.mark.parametrize("blocks, message", [(3, "at most 2, the model's depth. Received: 3"), (-1, "at least 0")])
def test_bad_depths(blocks, message):
    model = tiny.build()
    with pytest.raises(ValueError, match=f"`blocks`.*{message}"):
        freeze(model, blocks)
    assert not model.non_trainable_weights


def test_a_model_with_lora_is_refused():
    model = tiny.build()
    counts = lora.enable_lora(model, 2)
    with pytest.raises(ValueError, match="Expected a model without LoRA"):
        freeze(model)
    assert freezing.count_parameters(model) == counts
