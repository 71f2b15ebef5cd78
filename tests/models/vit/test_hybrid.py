import keras
import pytest

import keras_vit

TINY = {"image_size": (32, 41), "width_factor": 0.5, "hidden_dim": 12, "num_layers": 1, "num_heads": 3, "mlp_dim": 20}
TINY |= {"num_classes": 5, "head_init": "glorot_uniform"}


def build(variant="R50+B/16", **changes):
    """Builds a tiny hybrid with changed arguments."""
    stages = {} if variant.startswith("R+") else {"stages": (1, 2)}
    return keras_vit.ViT(variant, **{**TINY, **stages, **changes})


@pytest.mark.parametrize("variant, grid", [("R50+B/16", 14), ("R50+B/32", 7), ("R26+S/32", 7), ("R+Ti/16", 7)])
def test_hybrid_position_grid_fits_the_feature_map(variant, grid):
    sizes = {"hidden_dim": 8, "num_layers": 1, "num_heads": 1, "mlp_dim": 8, "width_factor": 0.5}
    with keras.StatelessScope(initialize_variables=False):
        models = [keras_vit.ViT(variant, image_size=size, **sizes) for size in (224, (None, None))]
    keras.utils.clear_session(free_memory=False)
    assert [model.get_layer("position_embedding").grid_size for model in models] == [(grid, grid)] * 2
    assert models[0].get_layer("patch_embedding").output.shape == (None, grid * grid, 8)


def test_hybrid_position_grids_of_small_images():
    assert build("R+Ti/16", image_size=29).get_layer("position_embedding").grid_size == (1, 1)
    # A stem fits below any variant.
    assert build("B/16", stages=(), patch_size=4).get_layer("position_embedding").grid_size == (2, 2)
