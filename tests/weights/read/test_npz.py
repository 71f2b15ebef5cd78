import contextlib
import io
import json
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keras_vit
from keras_vit.weights.read.npz import NpzFile
from keras_vit.weights.write import write_npz
from tests.tiny import randomize
from tests.weights.helpers import unchanged
from tests.weights.read.damage import Bomb, each_flip

KERNEL = "embedding/kernel.npy"
NORM = "Transformer/encoder_norm/scale.npy"
HEADER = b"\x93NUMPY\x01\x00"


def with_member(data, name, content):
    """Returns the archive with a member added or replaced."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            if info.filename != name:
                new.writestr(info.filename, old.read(info))
        new.writestr(name, content)
    return out.getvalue()


def with_comment(data, comment):
    out = io.BytesIO(data)
    with zipfile.ZipFile(out, "a") as archive:
        archive.comment = comment
    return out.getvalue()


def npy(array, **kwargs):
    out = io.BytesIO()
    np.lib.format.write_array(out, array, **kwargs)
    return out.getvalue()


def damages(tmp_path):
    """Yields (name, function from the good bytes to the bad bytes, text of the error)."""

    def member(name, content):
        return lambda data: with_member(data, name, content)

    ran = pickle.dumps(Bomb(tmp_path / "ran"))
    objects = npy(np.array([Bomb(tmp_path / "ran")], object), allow_pickle=True)
    yield "pickle", lambda data: ran, "is not an .npz archive"
    yield "npy", lambda data: npy(np.ones(3, "float32")), "is not an .npz archive"
    yield "foreign_member", member("readme.txt", b"hello"), "is not an array"
    yield "raw_pickle_member", member(NORM, ran), "damaged"
    yield "objects", member(NORM, objects), "Python objects"
    yield "objects_extra", member("x.npy", objects), "Python objects"
    yield "integers", member(NORM, npy(np.ones(12, int))), "dtype int64"
    yield "nan", member(NORM, npy(np.full(12, np.nan, "float32"))), "NaN"
    yield "infinity", member(KERNEL, npy(np.full((4, 4, 3, 12), np.inf, "float32"))), "infinite"
    yield "short_data", member(NORM, npy(np.ones(12, "float32"))[:-4]), "do not match its shape"
    yield "long_data", member(NORM, npy(np.ones(12, "float32")) + b"1234"), "do not match its shape"
    huge = HEADER + (118).to_bytes(2, "little")
    huge += b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999,), }".ljust(117) + b"\n"
    yield "huge_shape", member(NORM, huge), "do not match its shape"
    yield "evil_header", member(NORM, huge.replace(b"99999999999999,", b"exit(), 0, 0, 0")), "damaged"
    yield "deep_header", member(NORM, HEADER + (9001).to_bytes(2, "little") + b"-" * 9000 + b"1"), "damaged"
    yield "bad_version", member(NORM, b"\x93NUMPY\x09\x00" + bytes(120)), "damaged"
    for name, shape in ((NORM, (1, 12)), (KERNEL, (4, 4, 3, 11)), (KERNEL, (12,)), ("cls.npy", (1, 2, 12))):
        yield f"shape_{name}_{shape}", member(name, npy(np.ones(shape, "float32"))), "does not fit"
    for grid in ("[3, 5]", "[0, 0]", "[1e300, 1]", "[Infinity, 1]", "[3000, 3000]", "4"):
        text = f'{{"keras_vit": {{"grid": {grid}}}}}'.encode()
        yield f"comment_{grid}", lambda data, c=text: with_comment(data, c), "the grid stated in the file"
    for value in (3, None):
        text = json.dumps({"keras_vit": {"config": value}}).encode()
        yield f"comment_{value}", lambda data, c=text: with_comment(data, c), "Expected config as a dict"


def test_damaged_file_is_refused_and_model_unchanged(tiny, tiny_file, tmp_path):
    data = tiny_file.read_bytes()
    cases = list(damages(tmp_path))
    assert len(cases) == len({name for name, _, _ in cases})
    before = [w.copy() for w in randomize(tiny, seed=1).get_weights()]
    for name, damage, expected in cases:
        path = tmp_path / "damaged.npz"
        path.write_bytes(damage(data))
        assert path.read_bytes() != data
        try:
            keras_vit.load_weights(tiny, path)
        except ValueError as error:
            assert "damaged.npz" in str(error) and expected in str(error), f"{name}: {error}"
        else:
            pytest.fail(f"{name} was loaded")
        assert unchanged(tiny, before), name
    assert not (tmp_path / "ran").exists()


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    dtype=st.sampled_from(["float16", "float32", "float64", ">f4"]),
    fortran=st.booleans(),
)
def test_arrays_equal_those_of_numpy(tmp_path_factory, shape, dtype, fortran):
    array = np.random.default_rng(0).normal(size=shape).astype(dtype)
    array = np.asfortranarray(array) if fortran else array
    path = tmp_path_factory.mktemp("arrays") / "file.npz"
    np.savez_compressed(path, **{"a/b": array})
    file = NpzFile(path)
    assert file.entries["a/b"].shape == tuple(shape)
    ((key, read),) = file.read(["a/b"])
    assert key == "a/b" and read.dtype == "float32"
    np.testing.assert_array_equal(read, array.astype("float32"))


def test_bit_flip_in_own_comment_is_refused_or_harmless(tmp_path, arrays):
    path = tmp_path / "file.npz"
    write_npz(path, arrays, {"keras_vit": {"grid": [4, 6]}})
    for _ in each_flip(path, path.stat().st_size - len(NpzFile(path).comment)):
        try:
            facts = NpzFile(path).facts
        except ValueError as error:
            assert "comment of the archive is damaged" in str(error)
        else:
            assert facts["keras_vit"] == {"grid": [4, 6]}


def test_facts_are_a_comment_in_json(tmp_path, arrays):
    path = tmp_path / "file.npz"
    for comment in (b"", b"hello", b"[1]", b'{"a": [1, 2]}', b"[" * 9000):
        np.savez(path, **arrays)
        path.write_bytes(with_comment(path.read_bytes(), comment))
        assert NpzFile(path).facts == ({"a": [1, 2]} if b"a" in comment else {})


def test_bit_flip_in_last_record_loses_no_array(tmp_path, arrays):
    path = tmp_path / "file.npz"
    np.savez(path, **arrays)
    # The last record of a ZIP archive without a comment has 22 bytes.
    for _ in each_flip(path, path.stat().st_size - 22):
        with contextlib.suppress(ValueError):
            assert NpzFile(path).entries.keys() == arrays.keys()
