import numpy as np
import pytest

from keras_vit.pretraining import Reconstruction, plot_reconstructions
from keras_vit.pretraining.plots import displayable

pytest.importorskip("matplotlib", reason="the figures are its")
RNG = np.random.default_rng(0)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_draws_three_panels_an_image(channels, tmp_path):
    reconstruction = Reconstruction(*RNG.uniform(0, 255, (3, 2, 8, 12, channels)))
    figure = plot_reconstructions(reconstruction, tmp_path / "pictures.png")
    assert (tmp_path / "pictures.png").read_bytes().startswith(b"\x89PNG")
    assert [file.name for file in tmp_path.iterdir()] == ["pictures.png"]
    panels = figure.get_axes()
    assert len(panels) == 6
    assert [axes.get_title() for axes in panels[:3]] == ["original", "masked", "prediction"]
    for i, part in enumerate(reconstruction):
        for row in range(2):
            shown = panels[3 * row + i].get_images()[0].get_array()
            expected = displayable(part)[row]
            np.testing.assert_array_equal(shown, expected[..., 0] if channels < 3 else expected)


def test_displayable_images_are_bytes():
    images = np.array([[[[-3.0, 0.4, 300.0, 7.0]]]])
    np.testing.assert_array_equal(displayable(images), [[[[0, 0, 255]]]])
    assert displayable(images[..., :2]).tolist() == [[[[0]]]] and displayable(images).dtype == "uint8"


def test_refuses_what_is_no_reconstruction(tmp_path):
    images = np.zeros((2, 4, 4, 3))
    for wrong in ((images, images), (images, images, images[:1]), (images[0],) * 3, (images[:0],) * 3):
        with pytest.raises(ValueError, match="three arrays of one shape"):
            plot_reconstructions(wrong)
    with pytest.raises(ValueError, match=r"Expected a \.png file"):
        plot_reconstructions((images,) * 3, tmp_path / "pictures.jpg")
