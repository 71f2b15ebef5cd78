import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import arguments
from keras_vit.models.vt_resnet.layers import VTModule
from tests.contract import check_layer, randomize
from tests.errors import refuses

SHAPES = [(2, 4, 5, 6), (2, 3, 8)]


@pytest.mark.parametrize(
    "arguments, shapes, num_weights, num_seeds",
    [
        ({"token_dim": 8}, SHAPES[:1], 6, 0),
        pytest.param(
            {"token_dim": 8, "key_dim": 4, "recurrent": True, "drop_path_rate": 0.01, "seed": 7},
            SHAPES,
            6,
            2,
            marks=pytest.mark.every_backend,
        ),
    ],
)
def test_contract(arguments, shapes, num_weights, num_seeds):
    arguments = {"num_tokens": 3, "project": False, **arguments}
    numbers = {"num_weights": num_weights, "num_seeds": num_seeds}
    check_layer(VTModule, arguments, shapes, output_shape=(2, 3, 8), **numbers)


def test_module_is_tokenizer_transformer_projector():
    x, tokens = (np.random.default_rng(0).normal(size=shape).astype("float32") for shape in SHAPES)
    for recurrent, inputs in ((False, (x,)), (True, (x, tokens))):
        module = VTModule(3, 8, 4, recurrent=recurrent)
        feature_map, out, weights = module(*inputs, return_attention_scores=True)
        randomize(module, np.random.default_rng(0))
        assert len(module.weights) == 9 and weights.shape == (2, 3, 4, 5)
        feature_map, out = module(*inputs)
        expected = module.transformer(module.tokenizer(*inputs))
        np.testing.assert_array_equal(ops.convert_to_numpy(out), ops.convert_to_numpy(expected))
        expected = module.projector(x, expected)
        np.testing.assert_array_equal(ops.convert_to_numpy(feature_map), ops.convert_to_numpy(expected))
        again = VTModule.from_config(module.get_config())
        shapes = again(*(keras.Input(each.shape[1:]) for each in inputs))
        assert [y.shape for y in shapes] == [(None, 4, 5, 6), (None, 3, 8)]


def test_seed_gives_transformer_and_projector_theirs():
    module = VTModule(3, 8, drop_path_rate=0.5, seed=7)
    assert [module.transformer.seed, module.projector.seed] == arguments.seeds(7, 2)
    x = np.random.default_rng(0).normal(size=(32, 2, 2, 4)).astype("float32")
    again = VTModule(3, 8, drop_path_rate=0.5, seed=7)
    for each in (module, again):
        each.build(x.shape)
    again.set_weights(module.get_weights())
    for actual, expected in zip(again(x, training=True), module(x, training=True), strict=True):
        np.testing.assert_array_equal(*map(ops.convert_to_numpy, (actual, expected)))


def test_config_keeps_lora():
    module = VTModule(3, 8)
    x = np.ones(SHAPES[0], "float32")
    module(x)
    for dense in module.dense_layers():
        dense.enable_lora(2)
    again = VTModule.from_config(module.get_config())
    again(x)
    assert len(module.dense_layers()) == 9 and len(again.weights) == 27
    assert [w.path.split("/", 1)[1] for w in again.weights] == [w.path.split("/", 1)[1] for w in module.weights]


def test_unfitting_tokens_are_refused():
    x, tokens = map(np.zeros, SHAPES)
    refuses("Expected `tokens` None with recurrent=False. Received: tokens of shape", VTModule(3), x, tokens)
    refuses("Expected `tokens` of shape.*3, token_dim.* Received: tokens of shape None", VTModule(3, recurrent=True), x)
    refuses("Expected `tokens` of shape.*4, token_dim", VTModule(4, recurrent=True), x, tokens)
