import pytest

import keras_vit


@pytest.mark.parametrize("name, count", [("DINOv2S14", 22_056_192), ("DINOv2B14", 86_579_712)])
def test_parameter_count(count_params, name, count):
    # The published files hold a mask token more, which only pre-training uses.
    assert count_params(getattr(keras_vit, name)) == count


def test_registers_stand_between_the_class_token_and_the_patches():
    model = keras_vit.DINOv2S14(num_registers=4, num_layers=1, image_size=28)
    assert model.get_layer("block_00").output.shape == (None, 1 + 4 + 2 * 2, 384)
    assert model.get_layer("position_embedding").num_prefix_positions == 1
    assert model.get_layer("block_00").layer_scale_init == 1e-5
