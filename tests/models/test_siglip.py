import pytest

import keras_vit


def test_so400m_at_384_drops_the_remainder():
    model = keras_vit.SigLIPSO400M14(image_size=384, num_layers=1)
    assert model.get_layer("position_embedding").grid_size == (27, 27)
    assert model.get_layer("block_00").output.shape == (None, 27 * 27, 1152)
    assert model.output_shape == (None, 1152)


@pytest.mark.parametrize("name, count", [("SigLIPB16", 92_884_224), ("SigLIPSO400M14", 427_680_704)])
def test_parameter_count(count_params, name, count):
    assert count_params(getattr(keras_vit, name)) == count


def test_an_image_tower_has_neither_class_token_nor_head():
    names = {layer.name for layer in keras_vit.SigLIPB16(num_layers=1).layers}
    assert "pooling" in names and not names & {"class_token", "head"}
