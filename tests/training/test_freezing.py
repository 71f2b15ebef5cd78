import keras
import numpy as np
import pytest

import keras_vit
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


def own_head(backbone):
    x = keras.layers.BatchNormalization(name="bn")(backbone.output)
    return keras.Model(backbone.input, keras.layers.Dense(5, name="mine")(x))


def nested(backbone):
    inputs = keras.Input(backbone.input_shape[1:])
    x = backbone(keras.layers.Rescaling(1.0)(keras.layers.RandomFlip()(inputs)))
    return keras.Model(inputs, keras.layers.Dense(5, name="mine")(keras.layers.BatchNormalization(name="bn")(x)))


def sequential(backbone):
    head = keras.Sequential([keras.layers.BatchNormalization(name="bn"), keras.layers.Dense(5, name="mine")])
    return keras.Sequential([backbone, head])


def owners(variables):
    """The layers of variables: a Sequential's are below its name."""
    known = {"bn", "mine", "norm", "pre_logits", "block_00", "block_01", "stage_1_unit_01", "stage_2_unit_01"}
    return list(dict.fromkeys(next(part for part in v.path.split("/") if part in known) for v in variables))


@pytest.mark.parametrize("around", [own_head, nested, sequential])
def test_a_head_of_the_users_own_is_trained(around):
    model = around(tiny.build(num_classes=0, representation_size=7))
    counts = freeze(model)
    # The scale and shift of `bn`, a kernel and a bias: trained even if frozen before.
    assert owners(model.trainable_variables) == ["bn", "mine"] and counts.trainable == 2 * 7 + 7 * 5 + 5
    model.get_layer(index=-1).trainable = False
    freeze(model, blocks=1)
    assert owners(model.trainable_variables) == ["block_01", "norm", "pre_logits", "bn", "mine"]
    assert freezing.unfreeze(model).frozen == 2 * 7
    bit = around(keras_vit.BiT("R50x1", stages=(1, 1), width_factor=0.5, image_size=32, num_classes=0))
    freeze(bit)
    assert owners(bit.trainable_variables) == ["bn", "mine"]


@pytest.mark.parametrize("around", [own_head, nested])
def test_a_new_head_learns_and_the_backbone_stays(around, tmp_path):
    model = around(tiny.build(num_classes=0))
    freeze(model)
    before = {id(v): keras.ops.convert_to_numpy(v).copy() for v in model.weights}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile="auto" if keras.backend.backend() == "jax" else False)
    rng = np.random.default_rng(0)
    model.fit(rng.normal(size=(4, 16, 16, 3)), np.arange(4), verbose=0)
    changed = [v for v in model.weights if not np.array_equal(before[id(v)], v)]
    assert set(owners(changed)) == {"bn", "mine"}
    model.save(tmp_path / "m.keras")
    reloaded = keras.models.load_model(tmp_path / "m.keras")
    assert freezing.count_parameters(reloaded) == freezing.count_parameters(model)


def test_nothing_left_to_train():
    model = tiny.build(num_classes=0)
    with pytest.raises(ValueError, match="something left to train. Received: model 'vit_B16'"):
        freeze(model)
    with pytest.raises(ValueError, match="something left to train"):
        freeze(keras.Sequential([model, keras.layers.Dropout(0.1)]))
    body = keras.Model(model.input, model.get_layer("block_01").output)
    with pytest.raises(ValueError, match="freeze fewer blocks"):
        freeze(body, blocks=2)
    assert not model.non_trainable_weights and freeze(model, blocks=2).trainable == 2 * 12
    # Its head has no weights until it is built.
    assert freeze(keras.Sequential([keras.layers.Rescaling(1.0), model, keras.layers.Dense(2)])).trainable == 0


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
    clone = keras.models.clone_model(model)
    for each in (reloaded, clone):
        assert [v.path for v in each.trainable_variables] == [v.path for v in model.trainable_variables]
        assert freezing.count_parameters(each) == counts
    assert freezing.unfreeze(reloaded) == (model.count_params(), 0)


def test_what_is_frozen_within_a_block_survives_a_reload(tmp_path):
    model = tiny.build()
    model.get_layer("block_00").mlp.trainable = False
    block = model.get_layer("block_01")
    block.trainable = False
    block.attention.qkv.bias.trainable = True
    expected = [v.path for v in model.trainable_variables]
    assert "block_01/attention/qkv/bias" in expected and "block_00/mlp/dense_1/bias" not in expected
    model.save(tmp_path / "m.keras")
    for each in (keras.models.load_model(tmp_path / "m.keras"), keras.models.clone_model(model)):
        assert [v.path for v in each.trainable_variables] == expected
        assert freezing.unfreeze(each).frozen == 0


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
