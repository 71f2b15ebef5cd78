import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import inspection
from keras_vit.inspection import attention_distance, attention_maps, attention_rollout, gradient_rollout, patch_layout
from tests.errors import refuses
from tests.inspection import reference

FUNCTIONS = (attention_maps, attention_rollout, attention_distance, gradient_rollout, patch_layout)


class Held(keras.layers.Layer):
    """A layer that holds a ViT."""

    def __init__(self, vit, **kwargs):
        super().__init__(**kwargs)
        self.vit = vit

    def call(self, images):
        return self.vit(images)

    def compute_output_shape(self, images_shape):
        return self.vit.compute_output_shape(images_shape)


class Own(keras.Model):
    """A model with a `call` of its own."""

    def __init__(self, vit, **kwargs):
        super().__init__(**kwargs)
        self.vit = vit

    def call(self, images, training=None):
        return keras.ops.add(self.vit(images, training=training), 0.0)


def functional(vit):
    inputs = keras.Input((8, 12, 3))
    return keras.Model(inputs, keras.layers.Identity()(vit(keras.layers.RandomFlip(seed=0)(inputs))))


def sequential(vit):
    return keras.Sequential([keras.Input((8, 12, 3)), vit, keras.layers.Identity()])


def with_other_input(vit):
    inputs = keras.Input((8, 12, 3), name="image"), keras.Input((5,), name="bias")
    return keras.Model(list(inputs), keras.layers.Add()([vit(inputs[0]), inputs[1]]))


OUTER = {
    "functional": functional,
    "sequential": sequential,
    "layer": lambda vit: keras.Sequential([keras.Input((8, 12, 3)), Held(vit)]),
    "two inputs": with_other_input,
    "a class of its own": lambda vit: Own(vit),
    "names of their own": lambda vit: keras.Sequential(
        [keras.Input((8, 12, 3)), keras.layers.Identity(name="normalization"), vit, keras.layers.Identity(name="head")]
    ),
    "called twice elsewhere": lambda vit: (functional(vit), functional(vit))[1],
}


def everything(model, inputs):
    return {
        "maps": attention_maps(model, inputs, blocks=0),
        "rollout": attention_rollout(model, inputs),
        "distance": attention_distance(model, inputs),
        "gradient": gradient_rollout(model, inputs, classes=3),
        "positions": inspection.position_similarity(model),
        "filters": inspection.embedding_filters(model),
    }


@pytest.fixture(scope="module")
def plain():
    """Returns the weights of a ViT, two images and all that is computed for them."""
    vit, images = reference.build(num_registers=1)
    return vit.get_weights(), images, everything(vit, images)


@pytest.mark.parametrize("outer", OUTER.values(), ids=OUTER)
def test_inspection_finds_a_nested_vit(outer, plain):
    weights, images, expected = plain
    vit, _ = reference.build(num_registers=1)
    vit.set_weights(weights)
    model = outer(vit)
    two = outer is with_other_input
    inputs = [images, np.zeros((2, 5), "float32")] if two else images
    before = ops.convert_to_numpy(model(inputs, training=False))
    for name, actual in everything(model, inputs).items():
        np.testing.assert_allclose(actual, expected[name], atol=1e-5, err_msg=name)
    assert patch_layout(model, inputs) == ((8, 12), (2, 3), (4, 4), 2)
    np.testing.assert_array_equal(ops.convert_to_numpy(model(inputs, training=False)), before)


@pytest.mark.parametrize("copied", [False, True], ids=["as built", "clone"])
def test_inspection_with_own_head_and_of_clone(copied):
    vit, images = reference.build(num_classes=0, num_registers=1)
    expected = {name: array for name, array in everything(vit, images).items() if name != "gradient"}
    inner = functional(vit)
    model = keras.Model(inner.input, keras.layers.Dense(4, name="block_of_mine")(inner.output))
    if copied:
        weights = model.get_weights()
        model = keras.models.clone_model(model)
        model.set_weights(weights)
    actual = everything(model, images)
    assert actual.pop("gradient").max() > 0
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], atol=1e-5, err_msg=name)


def test_inspection_adds_no_nodes_to_the_layers():
    """Added nodes would accumulate in each epoch of a callback that inspects the model."""
    model, images = reference.build()
    before = [len(layer._inbound_nodes) for layer in model.layers]
    for function in (attention_maps, attention_rollout, attention_distance, patch_layout):
        function(model, images)
    assert [len(layer._inbound_nodes) for layer in model.layers] == before


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_inspection_in_half_precision(policy, plain):
    weights, images, expected = plain
    mixed, _ = reference.build(num_registers=1, dtype=policy)
    mixed.set_weights(weights)
    np.testing.assert_allclose(attention_maps(mixed, images).sum(axis=-1), 1, atol=1e-5)
    for name, actual in everything(mixed, images).items():
        assert actual.dtype == "float32"
        atol = 0.1 * np.abs(expected[name]).max()
        np.testing.assert_allclose(actual, expected[name], atol=atol, err_msg=name)


def test_inspection_refuses_other_models():
    vit, images = reference.build()
    dense = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    refuses("holds a ViT of this package", attention_maps, dense, np.zeros((1, 4)))
    refuses("Expected a Keras model. Received: 'B/16'", attention_maps, "B/16", images)
    inputs = keras.Input((8, 12, 3))
    two = keras.Model(inputs, keras.layers.Add()([vit(inputs), reference.build(name="other")[0](inputs)]))
    for function in (attention_rollout, lambda model, images: inspection.position_similarity(model)):
        refuses("Received: 2 in model .* To choose one of several ViTs, pass", function, two, images)


def test_inspection_refuses_token_merging():
    model, images = reference.build(token_merging=(0, 1))
    for function in FUNCTIONS:
        refuses("without token merging.*Build it with token_merging=0", function, model, images)
    # Functions that read only weights work.
    assert inspection.embedding_filters(model, number=2).shape == (2, 4, 4, 3)
    assert inspection.position_similarity(model).shape == (2, 3, 2, 3)


def test_inspection_refuses_a_vit_that_runs_twice():
    """The attention of both images would be mixed."""
    vit, images = reference.build(num_classes=0)
    inputs = keras.Input((8, 12, 3)), keras.Input((8, 12, 3))
    siamese = keras.Model(inputs, keras.layers.Subtract()([vit(x) for x in inputs]))
    for function in FUNCTIONS:
        refuses("each block runs once.*'block_00' run again in model", function, siamese, [images, images[::-1]])
    assert attention_rollout(vit, images).shape == (2, 2, 3)
