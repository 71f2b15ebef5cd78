import numpy as np
import pytest

from keras_vit.weights.read import open_checkpoint
from tests import hostile_archives
from tests.memory import needs_linux, peak
from tests.weights.read.damage import contents, refusal

torch = pytest.importorskip("torch")


@needs_linux
@pytest.mark.parametrize("name", hostile_archives.FILES)
def test_small_file_that_needs_much_memory_is_refused(tmp_path, name):
    path, (write, reason) = tmp_path / name, hostile_archives.FILES[name]
    write(path)
    # A first file imports the packages.
    np.savez(tmp_path / "first.npz", a=np.ones(2, "float32"))
    contents(tmp_path / "first.npz")
    messages = []
    assert peak(lambda: messages.append(refusal(path))) < 64 + 20e-6 * path.stat().st_size
    assert reason in messages[0]


def test_pickle_of_many_tensors_is_read(tmp_path):
    state = {f"blocks.{i}.attn.qkv.weight": torch.full((700,), float(i)) for i in range(3000)}
    for zipped in (True, False):
        torch.save(state, tmp_path / "many.pth", _use_new_zipfile_serialization=zipped)
        assert len(open_checkpoint(tmp_path / "many.pth").entries) == 3000


def test_script_with_shared_arrays_and_modules_is_read(tmp_path):
    class Block(torch.nn.Module):
        def __init__(self, shared):
            super().__init__()
            self.weight, self.act, self.sizes = torch.nn.Parameter(torch.arange(6.0)), shared, [1, 2]

        def forward(self, x):
            return self.act(x) + self.weight

    act = torch.nn.GELU()
    model = torch.nn.Sequential(Block(act), Block(act))
    model[1].weight = model[0].weight
    torch.jit.script(model).save(tmp_path / "model.pt")
    _, arrays = contents(tmp_path / "model.pt")
    assert list(arrays) == ["0.weight", "1.weight"]
    np.testing.assert_array_equal(arrays["1.weight"], np.arange(6))
