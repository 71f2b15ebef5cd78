import keras
import numpy as np
import pytest

from keras_vit import export
from tests import tiny

pytest.importorskip("torch")
if keras.backend.backend() != "torch":
    pytest.skip("PyTorch writes it for every backend", allow_module_level=True)


def test_a_model_of_any_size_with_small_weights_keeps_its_answers(tmp_path):
    sizes = {"hidden_dim": 48, "mlp_dim": 96, "num_layers": 1}
    # With dropout the model has variables that are no weights.
    model = tiny.build(image_size=(None, None), dropout_rate=0.5, **sizes)
    images = np.random.default_rng(0).uniform(-1, 1, (7, 16, 16, 3)).astype("float32")
    report = export.torch_export(model, tmp_path / "vit.pt2", precision="float16", images=images)
    assert report.difference < 1e-5
    assert 0 < report.change.largest < 0.01
    assert [p.name for p in tmp_path.iterdir()] == ["vit.pt2"]
    # The program runs in a process of its own, where the precision of what is stored was not seen.
    import torch

    weights = torch.export.load(tmp_path / "vit.pt2").state_dict.values()
    assert sum(w.numel() for w in weights if w.dtype == torch.float16) > 0.9 * model.count_params()


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({"skip_unused_tokens": True}, [(70, 16, 16)]),
        ({"dtype": "mixed_bfloat16"}, [(1, 16, 16), (70, 16, 16)]),
        ({"image_size": (None, None), "patch_size": 16}, [(1, 32, 48), (3, 96, 80), (70, 48, 48)]),
        ({"image_size": (None, None), "dtype": "mixed_bfloat16", "num_layers": 1}, [(1, 84, 84)]),
    ],
    ids=["skipping", "bfloat16", "any size", "more tokens"],
)
def test_a_program_is_not_tied_to_the_sizes_that_it_was_made_with(changes, sizes, tmp_path):
    """Which way a product takes here depends on its rows, and that of the attention on the tokens."""
    import torch

    model = tiny.build(**changes)
    export.torch_export(model, tmp_path / "vit.pt2")
    program = torch.export.load(tmp_path / "vit.pt2").module()
    for size in sizes:
        images = np.random.default_rng(0).uniform(-1, 1, (*size, 3)).astype("float32")
        with torch.no_grad():
            answer = program(torch.tensor(images))
        expected = model.predict(images, verbose=0)
        tolerance = 0.05 if "dtype" in changes else 1e-5
        np.testing.assert_allclose(keras.tree.flatten(answer)[0].numpy(), expected, atol=tolerance)
