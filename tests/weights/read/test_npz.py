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
from tests.weights.read.damage import Bomb, check_damage, each_flip

KERNEL = "embedding/kernel.npy"
NORM = "Transformer/encoder_norm/scale.npy"
HEADER = b"\x93NUMPY\x01\x00"


def with_member(data, name, content):
    """Returns the archive with a member added, replaced, or removed if `content` is None."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            if info.filename != name:
                new.writestr(info.filename, old.read(info))
        if content is not None:
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
    yield "pickle", lambda d: pickle.dumps(Bomb(tmp_path / "ran")), "is not an .npz archive"
    yield "npy", lambda d: npy(np.ones(3, "float32")), "is not an .npz archive"
    yield "foreign_member", lambda d: with_member(d, "readme.txt", b"hello"), "is not an array"
    yield "raw_pickle_member", lambda d: with_member(d, NORM, pickle.dumps(Bomb(tmp_path / "ran"))), "damaged"
    objects = np.array([Bomb(tmp_path / "ran")], object)
    yield "objects", lambda d: with_member(d, NORM, npy(objects, allow_pickle=True)), "Python objects"
    yield "objects_extra", lambda d: with_member(d, "x.npy", npy(objects, allow_pickle=True)), "Python objects"
    yield "integers", lambda d: with_member(d, NORM, npy(np.ones(12, int))), "dtype int64"
    yield "strings", lambda d: with_member(d, NORM, npy(np.array(["a"] * 12))), "dtype <U1"
    yield "nan", lambda d: with_member(d, NORM, npy(np.full(12, np.nan, "float32"))), "NaN"
    yield "infinity", lambda d: with_member(d, KERNEL, npy(np.full((4, 4, 3, 12), np.inf, "float32"))), "infinite"
    yield "short_data", lambda d: with_member(d, NORM, npy(np.ones(12, "float32"))[:-4]), "do not match its shape"
    yield "long_data", lambda d: with_member(d, NORM, npy(np.ones(12, "float32")) + b"1234"), "do not match its shape"
    huge = HEADER + (118).to_bytes(2, "little")
    huge += b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999,), }".ljust(117) + b"\n"
    yield "huge_shape", lambda d: with_member(d, NORM, huge), "do not match its shape"
    yield "evil_header", lambda d: with_member(d, NORM, huge.replace(b"99999999999999,", b"exit(), 0, 0, 0")), "damaged"
    yield "bad_magic", lambda d: with_member(d, NORM, b"\x93NUMPZ" + bytes(120)), "damaged"
    yield "bad_version", lambda d: with_member(d, NORM, b"\x93NUMPY\x09\x00" + bytes(120)), "damaged"
    shapes = {NORM: [(11,), (1, 12)], KERNEL: [(4, 4, 3, 11), (1, 4, 4, 3, 12), (12,)], "cls.npy": [(1, 2, 12)]}
    for name, shape in [(member, shape) for member in shapes for shape in shapes[member]]:
        wrong = npy(np.ones(shape, "float32"))
        yield f"shape_{name}_{shape}", lambda d, n=name, w=wrong: with_member(d, n, w), "does not fit"
    yield "missing", lambda d: with_member(d, NORM, None), "not in the file"
    yield "missing_cls", lambda d: with_member(d, "cls.npy", None), "does not fit"
    for grid in ("[3, 5]", "[0, 0]", "[1e300, 1]", "[Infinity, 1]", "[-4, -4]", "[3000, 3000]", "4"):
        text = f'{{"keras_vit": {{"grid": {grid}}}}}'.encode()
        yield f"comment_{grid}", lambda d, c=text: with_comment(d, c), "the grid stated in the file"
    for value in (3, "x", [], None):
        text = json.dumps({"keras_vit": {"config": value}}).encode()
        yield f"comment_{value}", lambda d, c=text: with_comment(d, c), "Expected config as a dict"
    yield "extra", lambda d: with_member(d, "extra/kernel.npy", npy(np.ones(3, "float32"))), "but not in the model"


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
        assert all(np.array_equal(a, b) for a, b in zip(before, tiny.get_weights(), strict=True)), name
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


def test_random_damage_is_refused_or_harmless(tmp_path, arrays):
    path = tmp_path / "file.npz"
    write_npz(path, arrays, {"grid": [4, 6]})
    check_damage(path, refused_at_least=70)


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


def test_bit_flip_in_directory_loses_no_array(tmp_path, arrays):
    path = tmp_path / "file.npz"
    np.savez(path, **arrays)
    with zipfile.ZipFile(path) as archive:
        start = archive.start_dir
    for _ in each_flip(path, start):
        with contextlib.suppress(ValueError):
            assert NpzFile(path).entries.keys() == arrays.keys()
