import errno
import json
import os
from unittest import mock

import numpy as np
import pytest

from keras_vit.files import replacing
from keras_vit.training.checkpoints import CheckpointSlots
from tests.errors import refuses

ARRAYS = {
    "a/0": np.arange(6, dtype="float32").reshape(2, 3),
    "b": np.array(7, "int64"),
    "c": np.zeros((0, 2), "float16"),
    "d": np.asfortranarray(np.arange(6, dtype="uint32").reshape(2, 3)),
}


def same(first, second):
    return first.keys() == second.keys() and all(
        first[k].dtype == second[k].dtype and np.array_equal(first[k], second[k]) for k in first
    )


def saved(folder, steps, slots=3):
    checkpoints = CheckpointSlots(folder, slots)
    folder.mkdir(parents=True, exist_ok=True)
    return checkpoints, [checkpoints.save(step, {"step": step}, {**ARRAYS, "step": np.array(step)}) for step in steps]


def test_slots_keep_the_last_files_and_read_the_newest(tmp_path):
    checkpoints, paths = saved(tmp_path / "deep" / "folder", (1, 5, 20, 100))
    assert checkpoints.paths() == paths[1:]
    slot = checkpoints.newest()
    assert slot.path == paths[-1]
    assert slot.facts == {"step": 100}
    assert same(slot.arrays, {**ARRAYS, "step": np.array(100)})
    assert len(saved(tmp_path / "five", range(9), slots=5)[0].paths()) == 5


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", "half", "more", "zeros", "expands"])
def test_newest_skips_a_damaged_file(tmp_path, capsys, content):
    checkpoints, paths = saved(tmp_path, (1, 2))
    data = paths[1].read_bytes()
    if expands := content == "expands":
        np.savez_compressed(paths[1], header=np.zeros(20_000_000, "uint8"))
        content = paths[1].read_bytes()
    kinds = {"half": data[: len(data) // 2], "more": data[:-1], "zeros": bytes(len(data))}
    paths[1].write_bytes(kinds.get(content, content))
    assert checkpoints.newest().facts == {"step": 1}
    printed = capsys.readouterr().out
    assert f"{str(paths[1])!r} is damaged" in printed and ("members expand to" in printed) == expands
    paths[0].write_bytes(b"")
    assert checkpoints.newest() is None


@pytest.mark.parametrize("slots", [1, 3])
def test_slots_set_damaged_files_aside(tmp_path, slots):
    checkpoints, paths = saved(tmp_path, (1000, 1500, 2000), slots)
    for path in checkpoints.paths():
        path.write_bytes(path.read_bytes()[:100])
    assert checkpoints.newest() is None
    assert len(list(tmp_path.glob("*.npz.damaged"))) == slots and not checkpoints.paths()
    for step in (100, 200, 300, 400):
        checkpoints.save(step, {"step": step}, ARRAYS)
        assert checkpoints.newest().facts == {"step": step}
    assert len(checkpoints.paths()) == slots


def test_slots_keep_a_new_file_of_an_earlier_step(tmp_path):
    checkpoints, _ = saved(tmp_path, (1000, 1500, 2000))
    for step in (100, 200):
        assert checkpoints.save(step, {}, ARRAYS) in checkpoints.paths()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_newest_ignores_a_named_pipe(tmp_path):
    checkpoints, paths = saved(tmp_path, (1,))
    os.mkfifo(tmp_path / "step_000000000009.npz")
    assert checkpoints.newest().path == paths[0]


def test_newest_detects_flipped_bits(tmp_path):
    checkpoints, paths = saved(tmp_path, (1, 2))
    data = paths[1].read_bytes()
    rng = np.random.default_rng(0)
    fallen = 0
    for bit in rng.choice(8 * len(data), 100, replace=False):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        paths[1].write_bytes(flipped)
        slot = checkpoints.newest()
        # The archive contains some fields twice, and reads only one of them.
        assert same(slot.arrays, {**ARRAYS, "step": np.array(slot.facts["step"])})
        fallen += slot.facts["step"] == 1
    assert fallen > 50


def test_newest_skips_missing_arrays_and_pickles(tmp_path, capsys):
    class Bomb:
        def __reduce__(self):
            return pytest.fail, ("unpickled",)

    checkpoints, paths = saved(tmp_path, (1, 2))
    with np.load(paths[1]) as archive:
        missing = {name: array for name, array in archive.items() if name != "arrays/b"}
    pickled = {"header": np.array([Bomb()], dtype=object)}
    for members, reason in ((missing, "is damaged (arrays are missing)"), (pickled, "allow_pickle=False")):
        np.savez(paths[1], **members)
        assert checkpoints.newest().facts == {"step": 1}
        assert reason in capsys.readouterr().out


def test_opened_removes_the_draft_of_a_killed_save(tmp_path):
    checkpoints, paths = saved(tmp_path, (1,))
    with replacing(tmp_path / "step_000000000002.npz") as draft:
        draft.write_bytes(b"half")
        assert checkpoints.paths() == paths
    (tmp_path / ".step_000000000002.npz.0.draft").mkdir()
    with checkpoints.opened():
        assert sorted(tmp_path.iterdir()) == [tmp_path / ".lock", *checkpoints.paths()]


def test_opened_keeps_a_draft_if_locks_do_not_work(tmp_path, monkeypatch):
    checkpoints, _ = saved(tmp_path, (1,))
    unsupported = mock.Mock(side_effect=OSError(errno.ENOLCK, "No locks available"))
    for name, value in (("keras_vit.files.fcntl.flock", unsupported), ("keras_vit.files.fcntl", None)):
        monkeypatch.setattr(name, value)
        with replacing(tmp_path / "step_000000000002.npz") as draft:
            draft.write_bytes(b"half")
            with checkpoints.opened():
                assert draft.read_bytes() == b"half"
    assert unsupported.called


def test_failed_save_keeps_the_other_files(tmp_path, monkeypatch):
    checkpoints, paths = saved(tmp_path, (1,), slots=1)

    def full(file, **arrays):
        file.write(b"some")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    refuses("no space left on device: .*step_000000000002.npz", checkpoints.save, 2, {}, ARRAYS, error=OSError)
    assert list(tmp_path.iterdir()) == paths
    assert checkpoints.newest().facts == {"step": 1}


def test_unreadable_checkpoint_raises_and_stays(tmp_path, monkeypatch):
    checkpoints, paths = saved(tmp_path, (1, 2))

    def denied(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    for name in ("builtins.open", "keras_vit.training.checkpoints._read"):
        with monkeypatch.context() as patch:
            patch.setattr(name, denied)
            with pytest.raises(PermissionError):
                checkpoints.newest()
    assert checkpoints.paths() == paths and checkpoints.newest().facts == {"step": 2}


def test_checkpoint_of_another_version_is_refused(tmp_path):
    checkpoints, paths = saved(tmp_path, (1,))
    header = np.frombuffer(json.dumps({"format": "keras_vit training checkpoint, version 1"}).encode(), "uint8")
    np.savez(paths[0], header=header)
    refuses("Expected a .*version 2. Received: .*version 1", checkpoints.newest)
    assert checkpoints.paths() == paths


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the second process is forked")
def test_second_process_in_a_folder_is_refused(tmp_path):
    checkpoints, _ = saved(tmp_path, (1,))
    with checkpoints.opened():
        pid = os.fork()
        if not pid:
            try:
                with CheckpointSlots(tmp_path).opened():
                    os._exit(1)
            except RuntimeError as error:
                os._exit(0 if f"process {os.getppid()} trains" in str(error) else 2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with checkpoints.opened():
        assert checkpoints.newest().facts == {"step": 1}
