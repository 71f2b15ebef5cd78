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
