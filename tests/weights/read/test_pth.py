import argparse
import io
import os
import pickle
import re
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from keras_vit.weights.read import open_checkpoint
from tests.errors import refuses
from tests.weights.read.damage import Bomb, contents, refusal

torch = pytest.importorskip("torch")
OTHER_VALUES = [
    ({"w": torch.ones(2), "bn.num_batches_tracked": torch.tensor(7)}, "'bn.num_batches_tracked' is of dtype"),
    ({"w": torch.ones(2), "epoch": 3}, "'epoch' is a int, expected a tensor"),
    ({"w": torch.ones(2), 3: torch.ones(2)}, "3 is a Tensor, expected a tensor with a string as key"),
    ({"w": torch.ones(2).to_sparse()}, "'w' is of dtype torch.float32 and torch.sparse_coo"),
    ({"w": torch.ones(1).expand(1 << 40)}, "'w' of shape (1099511627776,) is larger than its data"),
    ({"heads": {"w": torch.ones(2)}}, "'heads' is a dict"),
    ({}, "instead of a state dict"),
    (torch.ones(2), "holds a Tensor instead of a state dict"),
    ([torch.ones(2)], "holds a list instead of a state dict"),
    ({"w": torch.tensor([1.0, float("nan")])}, "'w' holds 1 NaN"),
    ({"model": {"w": torch.ones(2)}, "best": np.float64(0.5)}, "NumPy arrays and NumPy numbers"),
]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.pth"


@pytest.fixture
def state(arrays):
    return {key: torch.from_numpy(array) for key, array in arrays.items()}


@pytest.fixture(params=[True, False], ids=["zip", "legacy"])
def save(request, path):
    return lambda value: torch.save(value, path, _use_new_zipfile_serialization=request.param)


@pytest.mark.parametrize(
    "wrapper", [None, "model", "state_dict", "model_state_dict", "net", "ema", "module", "teacher", "target_encoder"]
)
def test_state_dict_is_read_from_each_wrapper(path, save, state, arrays, wrapper):
    more = {"optimizer": {"step": torch.tensor(3)}, "epoch": 300, "args": argparse.Namespace(lr=0.1)}
    more |= {"epochs": [1, 2], "sizes": torch.Size([1])}
    save(state if wrapper is None else {wrapper: state, **more})
    checkpoint = open_checkpoint(path)
    assert checkpoint.container == "pth" and checkpoint.facts == {"wrapper": wrapper, "others": []}
    assert {key: entry.shape for key, entry in checkpoint.entries.items()} == {k: a.shape for k, a in arrays.items()}
    keys = list(reversed(arrays))
    read = list(checkpoint.read(keys))
    del checkpoint
    path.unlink()
    assert [key for key, _ in read] == keys
    for key, array in read:
        assert array.dtype == "float32" and array.flags.owndata
        np.testing.assert_array_equal(array, arrays[key])


def test_parameters_views_and_float_types_are_read(path, save):
    table = torch.arange(12.0).reshape(3, 4)
    views = {"parameter": torch.nn.Parameter(table), "transposed": table.T, "row": table[1]}
    types = {"half": table.half(), "bfloat16": table.bfloat16(), "double": table.double()}
    save({**views, **types})
    _, read = contents(path)
    for key, expected in views.items():
        np.testing.assert_array_equal(read[key], expected.detach().numpy())
    for key in types:
        np.testing.assert_array_equal(read[key], table.numpy())


def test_code_in_pickle_is_refused_and_not_run(path, save, state, tmp_path):
    mark = tmp_path / "ran"
    for value in (Bomb(mark), {**state, "x": Bomb(mark)}, {"model": state, "args": Bomb(mark)}):
        save(value)
        message = refusal(path)
        assert "could run code" in message and "mkdir" in message and "safe_globals" not in message
        assert not mark.exists()
    save(torch.nn.Linear(1, 1))
    assert "Linear was not an allowed global by default). These could" in refusal(path)
    # Unpickling the bomb does create the folder.
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists()


def test_raw_and_archived_pickles_are_refused(path, state, tmp_path):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        path.write_bytes(pickle.dumps(Bomb(tmp_path / "ran"), protocol))
        refusal(path)
    # torch writes this number first.
    path.write_bytes(pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(Bomb(tmp_path / "ran"), 2) * 4)
    refusal(path)
    assert not (tmp_path / "ran").exists()
    torch.save(state, path)
    out = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            evil = info.filename.endswith("data.pkl")
            new.writestr(info.filename, pickle.dumps(Bomb(tmp_path / "ran"), 2) if evil else old.read(info))
    path.write_bytes(out.getvalue())
    assert "could run code" in refusal(path)
    assert not (tmp_path / "ran").exists()


def test_torchscript_is_refused_with_its_conversion(path, tmp_path):
    torch.jit.script(torch.nn.Linear(2, 3)).save(path)
    conversion = re.search(r"torch\.save\(.*\)\)?, new_path\)", refusal(path))[0]
    exec(conversion, {"torch": torch, "path": path, "new_path": tmp_path / "new.pth"})
    assert set(open_checkpoint(tmp_path / "new.pth").entries) == {"weight", "bias"}


@pytest.mark.parametrize("value, expected", OTHER_VALUES)
def test_values_other_than_float_tensors_are_refused(path, save, value, expected):
    save(value)
    assert expected in refusal(path)


def test_missing_torch_is_named(path, save, state, monkeypatch):
    save(state)
    monkeypatch.setitem(sys.modules, "torch", None)
    refuses("file.pth.*needs PyTorch.*Install torch", open_checkpoint, path, error=ImportError)


@pytest.mark.long
def test_readers_and_writers_do_not_import_torch():
    code = "import sys, keras_vit.weights.read, keras_vit.weights.write; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ, "KERAS_BACKEND": "numpy"}).returncode == 0
