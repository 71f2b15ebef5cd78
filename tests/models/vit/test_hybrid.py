import keras
import numpy as np
import pytest

import keras_vit
from tests.models.small import images

TINY = {"image_size": (32, 41), "width_factor": 0.5, "hidden_dim": 12, "num_layers": 1, "num_heads": 3, "mlp_dim": 20}
TINY |= {"num_classes": 5, "head_init": "glorot_uniform"}


def build(variant="R50+B/16", **changes):
    """Builds a tiny hybrid with changed arguments."""
    stages = {} if variant.startswith("R+") else {"stages": (1, 2)}
    return keras_vit.ViT(variant, **{**TINY, **stages, **changes})


@pytest.mark.parametrize(
    "variant, changes, num_tokens", [("R50+B/16", {}, 4 * 6 + 1), ("R+Ti/16", {"patch_size": (2, 3)}, 4 * 3 + 1)]
)
def test_hybrid_patches_cover_the_feature_map(variant, changes, num_tokens):
    assert build(variant, **changes).get_layer("block_00").output.shape == (None, num_tokens, 12)


def test_hybrid_layers_are_flat_and_named():
    names = [layer.name for layer in build().layers]
    root = ["root_conv", "root_norm", "root_relu", "root_pool"]
    units = ["stage_1_unit_01", "stage_2_unit_01", "stage_2_unit_02"]
    assert names[:10] == ["images", "normalization", *root, *units, "patch_embedding"]


@pytest.mark.parametrize("variant, grid", [("R50+B/16", 14), ("R50+B/32", 7), ("R26+S/32", 7), ("R+Ti/16", 7)])
def test_hybrid_position_grid_fits_the_feature_map(variant, grid):
    sizes = {"hidden_dim": 8, "num_layers": 1, "num_heads": 1, "mlp_dim": 8, "width_factor": 0.5}
    with keras.StatelessScope(initialize_variables=False):
        models = [keras_vit.ViT(variant, image_size=size, **sizes) for size in (224, (None, None))]
    keras.utils.clear_session(free_memory=False)
    assert [model.get_layer("position_embedding").grid_size for model in models] == [(grid, grid)] * 2
    assert models[0].get_layer("patch_embedding").output.shape == (None, grid * grid, 8)


def test_hybrid_feature_maps_lie_on_the_grid():
    model = build()
    x = images(1, 32, 41, 3)
    maps = keras_vit.features(model, blocks=(0,), format="map").predict_on_batch(x)
    tokens = keras_vit.features(model, blocks=(0,)).predict_on_batch(x)
    assert maps.shape == (1, 4, 6, 12)
    np.testing.assert_allclose(maps.reshape(1, 24, 12), tokens[:, 1:], atol=1e-6)


def test_hybrid_position_grids_of_small_images():
    assert build("R+Ti/16", image_size=29).get_layer("position_embedding").grid_size == (1, 1)
    # A stem fits below any variant.
    assert build("B/16", stages=(), patch_size=4).get_layer("position_embedding").grid_size == (2, 2)
