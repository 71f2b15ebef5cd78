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
