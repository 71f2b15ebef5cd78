import numpy as np
import pytest

from keras_vit.images.figures import displayable
from keras_vit.pretraining import Reconstruction, SimMIM, TensorBoardReconstructions, plot_reconstructions
from tests import tiny
from tests.errors import refuses
from tests.pictures import logged
from tests.pretraining.images import raw_images

pytest.importorskip("matplotlib", reason="plots need matplotlib")
pytest.importorskip("tensorflow", reason="it writes TensorBoard's logs")
RNG = np.random.default_rng(0)


@pytest.mark.parametrize("channels", [2, 4])
def test_plot_has_three_panels_per_image(channels, tmp_path):
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


def test_displayable_images_are_uint8():
    images = np.array([[[[-3.0, 0.4, 300.0, 7.0]]]])
    np.testing.assert_array_equal(displayable(images), [[[[0, 0, 255]]]])
    assert displayable(images[..., :2]).tolist() == [[[[0]]]] and displayable(images).dtype == "uint8"


def test_bad_arguments(tmp_path):
    images = np.zeros((2, 4, 4, 3))
    for wrong in ((images, images), (images, images, images[:1]), (images[0],) * 3, (images[:0],) * 3):
        refuses("three arrays of one shape", plot_reconstructions, wrong)
    refuses(r"Expected a \.png file", plot_reconstructions, (images,) * 3, tmp_path / "pictures.jpg")


def test_tensorboard_gets_the_reconstructions(tmp_path):
    model = SimMIM(tiny.build(include_preprocessing=True, num_layers=1), mask_unit=4, seed=0)
    images = raw_images(4)
    model.compile("adam")
    model.fit(images, verbose=0, callbacks=[TensorBoardReconstructions(tmp_path / "logs", images[:2])])
    (pictures,) = logged(tmp_path / "logs", "reconstructions").values()
    expected = np.concatenate([displayable(part) for part in model.reconstruct(images[:2])], axis=2)
    assert pictures.shape == (2, 16, 48, 3) and np.abs(pictures.astype(int) - expected).max() <= 1
