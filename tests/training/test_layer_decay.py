import keras
import numpy as np
import pytest

from keras_vit.training import optimizers
from keras_vit.training.optimizers import LayerDecay, WarmupDecay, layer_depths, layer_multipliers
from keras_vit.training.sam import SAM
from tests import tiny
from tests.errors import refuses
from tests.models.vt_resnet import test_model as vt_resnet
from tests.tiny import assert_close
from tests.training.test_optimizers import IMAGES, LABELS, LOSS, MODELS, built, fit, twins, values


def find_layer_name(variable):
    return variable.path.split("/")[0]


@pytest.mark.parametrize("name", MODELS)
def test_each_variable_belongs_to_one_multiplier(name):
    model = built(name)
    factors = layer_multipliers(model, decay=0.5)
    owners = {id(v): layer.name for layer in model.layers for v in layer.trainable_variables}
    assert set(owners) == {id(v) for v in model.trainable_variables}
    assert sum(len(layer.trainable_variables) for layer in model.layers) == len(model.trainable_variables)
    assert all(find_layer_name(v) == owners[id(v)] for v in model.trainable_variables)
    assert {factors[find_layer_name(v)] for v in model.trainable_variables} == set(factors.values())


@pytest.mark.parametrize("accumulation", [None, 2])
def test_layer_decay_of_adamw_equals_rates_per_layer(accumulation):
    model, reference = twins(lambda: tiny.build(layer_scale_init=0.5))
    factors = layer_multipliers(model, decay=0.5)

    def adam(factor):
        schedule = WarmupDecay(0.1 * factor, 20, 2, "linear", end=1e-5 * factor)
        return optimizers.AdamW(schedule, weight_decay=0.5, gradient_accumulation_steps=accumulation)

    start = values(model.trainable_variables)
    wrapped, each = LayerDecay(adam(1), factors), {factor: adam(factor) for factor in set(factors.values())}
    rng = np.random.default_rng(1)
    for _ in range(4):
        grads = {v.path: keras.ops.convert_to_tensor(rng.normal(size=v.shape), "float32") for v in model.weights}
        wrapped.apply([grads[v.path] for v in model.trainable_variables], model.trainable_variables)
        for factor, optimizer in each.items():
            group = [v for v in reference.trainable_variables if factors[find_layer_name(v)] == factor]
            optimizer.apply([grads[v.path] for v in group], group)
    for a, b, before in zip(values(model.weights), values(reference.weights), start, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
        assert np.abs(a - before).max() > 1e-4


@pytest.mark.parametrize("with_sam", [pytest.param(False, marks=pytest.mark.every_backend), True])
def test_layer_decay_scales_the_steps_of_fit(with_sam):
    plain, decayed = twins()
    start = plain.get_weights()
    factors = dict(zip([layer.name for layer in decayed.layers if layer.weights], (0.25, 1.0), strict=True))
    for model, optimizer in ((plain, optimizers.SGD(0.1)), (decayed, LayerDecay(optimizers.SGD(0.1), factors))):
        if with_sam:
            fit(SAM(model), keras.optimizers.LossScaleOptimizer(optimizer))
        else:
            fit(model, optimizer)
    for old, a, b, factor in zip(start, plain.get_weights(), decayed.get_weights(), (0.25, 0.25, 1, 1), strict=True):
        assert np.abs(a - old).max() > 1e-4
        np.testing.assert_allclose(b - old, factor * (a - old), atol=1e-6)


def test_reloaded_layer_decay_trains_the_same(tmp_path):
    model = tiny.build(num_layers=1)
    optimizer = LayerDecay.from_model(optimizers.AdamW(WarmupDecay(0.01, 100)), model, decay=0.7)
    fit(model, optimizer, batch_size=4)
    model.save(tmp_path / "m.keras")
    reloaded = keras.models.load_model(tmp_path / "m.keras")
    assert isinstance(reloaded.optimizer, LayerDecay) and reloaded.optimizer.multipliers == optimizer.multipliers
    assert int(reloaded.optimizer.iterations) == int(optimizer.iterations) == 2
    other = LayerDecay.from_config(optimizer.get_config())
    other.build(model.trainable_variables)
    other.set_weights(values(optimizer.variables))
    for each in (reloaded.optimizer, other):
        assert_close(values(optimizer.variables), values(each.variables))
    for m in (model, reloaded):
        m.fit(IMAGES, LABELS, shuffle=False, verbose=0)
    assert_close(model.get_weights(), reloaded.get_weights(), atol=1e-6)


def test_layer_decay_has_the_inner_learning_rate():
    model = tiny.build()
    model.compile(LayerDecay.from_model(keras.optimizers.SGD(0.1), model), LOSS)
    callback = keras.callbacks.LearningRateScheduler(lambda epoch: 0.25 / 2**epoch)
    history = model.fit(IMAGES, LABELS, epochs=2, verbose=0, callbacks=[callback])
    assert history.history["learning_rate"] == [0.25, 0.125]
    assert float(model.optimizer.inner_optimizer.learning_rate) == 0.125


def test_layer_decay_invalid_arguments_are_refused():
    model = tiny.build()
    for decay, message in ((0, "above 0"), (1.5, r"in \(0, 1\]")):
        refuses(f"`decay`.*{message}", LayerDecay.from_model, "sgd", model, decay)
    refuses("`multipliers`. Expected a dict from layer names to factors.*Received: 0.75", LayerDecay, "adamw", 0.75)
    assert isinstance(LayerDecay("adamw", {}).inner_optimizer, keras.optimizers.AdamW)
    averaging = keras.optimizers.AdamW(use_ema=True, name="adamw")
    refuses("use_ema=False. Received: 'adamw' with use_ema=True", LayerDecay.from_model, averaging, model)
    refuses("`head`.*finite number", LayerDecay, keras.optimizers.SGD(0.1), {"head": "slow"})
    build = LayerDecay(keras.optimizers.SGD(0.1), {"head": 1}).build
    refuses("weights of the layers head. Received: 'patch_embedding/kernel'", build, model.trainable_variables)


def test_layer_depths_of_a_vit(tmp_path):
    model = tiny.build(image_size=(None, None), num_registers=1, distillation_token=True, dropout_rate=0.1)
    depths = layer_depths(model)
    assert list(depths) == [layer.name for layer in model.layers]
    below = ("patch_embedding", "class_token", "distillation_token", "registers", "position_embedding")
    assert {depths[name] for name in below} == {0}
    assert (depths["block_00"], depths["block_01"]) == (1, 2)
    assert {depths[name] for name in ("norm", "pooling", "pooling_dist", "head", "head_dist", "mean_of_heads")} == {3}
    model.save(tmp_path / "m.keras")
    assert layer_depths(keras.models.load_model(tmp_path / "m.keras")) == depths


def test_layer_depths_of_networks_with_a_resnet():
    depths = layer_depths(built("hybrid"))
    assert depths["root_conv"] == depths["stage_1_unit_01"] == depths["patch_embedding"] == 0
    assert depths["block_00"] == 1 and depths["head"] == 2
    depths = layer_depths(built("bit"))
    assert [depths[n] for n in ("root_conv", "stage_1_unit_01", "stage_2_unit_01", "norm", "head")] == [0, 1, 2, 3, 3]
    depths = layer_depths(vt_resnet.build())
    names = ["root_norm", "stage_1_unit_01", "stage_2_unit_01", "vt_1", "vt_2", "pooling", "head"]
    assert [depths[name] for name in names] == [0, 1, 2, 3, 4, 5, 5]


def test_layer_depths_of_custom_heads_and_nested_models():
    backbone = tiny.build(num_classes=0, name="backbone")
    model = keras.Model(backbone.input, keras.layers.Dense(2, name="mine")(backbone.output))
    assert layer_depths(model) == layer_depths(backbone) | {"mine": 3}
    inputs = keras.Input((16, 16, 3), name="images")
    x = keras.layers.Normalization(name="normalization")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(2, name="mine")(backbone(x)))
    # The layer of Keras has weights, so its depth replaces the depth of the backbone's layer of this name.
    assert layer_depths(model) == layer_depths(backbone) | {"mine": 3, "normalization": 3}


def test_layer_depths_refuse_repeated_names_and_other_models():
    model = keras.Sequential([tiny.build(num_classes=0), keras.layers.Dense(2, name="norm")], name="mine")
    refuses("Expected different names.*'mine' with two layers named 'norm'", layer_depths, model)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, name="dense")], name="mine")
    refuses("Expected a model built by keras_vit.*'mine' with the layers dense", layer_depths, model)
