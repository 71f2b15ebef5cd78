import numpy as np
import pytest
from keras import ops

from keras_vit.models.coatnet.relative_transformer_block import RelativeTransformerBlock
from tests.contract import randomize

SIZES = {"num_heads": 2, "head_dim": 3, "units": 8, "grid_size": (3, 2)}


@pytest.mark.parametrize("pool_type, combine", [("max2", np.max), ("avg2", np.mean)])
def test_pooling_precedes_attention_in_both_branches(pool_type, combine):
    layer = RelativeTransformerBlock(**SIZES, strides=2, pool_type=pool_type, layer_scale_init=0.5)
    x = np.random.default_rng(1).normal(size=(2, 6, 4, 4)).astype("float32")
    layer.build(x.shape)
    randomize(layer, np.random.default_rng(0), scale=0.3)

    def pool(x):
        return combine(ops.convert_to_numpy(x).reshape(2, 3, 2, 2, 2, 4), axis=(2, 4)).astype("float32")

    shortcut = layer.shortcut(pool(x)) + layer.layer_scale_1(layer.attention(pool(layer.norm_1(x))))
    expected = shortcut + layer.layer_scale_2(layer.mlp(layer.norm_2(shortcut)))
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x)), ops.convert_to_numpy(expected), rtol=1e-4, atol=1e-5)


def test_equal_channels_are_not_projected():
    layer = RelativeTransformerBlock(**SIZES, strides=2)
    layer.build((None, 6, 4, 8))
    assert layer.shortcut is None and layer.mlp.mlp_dim == 32
