import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from keras_vit.weights.read import open_checkpoint
from keras_vit.weights.read.safetensors import DIGEST, SafetensorsFile
from keras_vit.weights.write import write_safetensors
from tests.errors import refuses
from tests.golden import GOLDEN_FOLDER
from tests.weights.read.damage import check_unreadable, contents, flipped

TWO = {
    "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    "b": {"dtype": "F16", "shape": [3, 2], "data_offsets": [8, 20]},
}


def write(path, header, size=20, tail=b""):
    """Writes a file with the given header and zeros as data, without our digest."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(size) + tail)
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.safetensors"


@pytest.mark.parametrize(
    "dtype, name",
    [("float16", "F16"), ("float32", "F32"), (">f4", "F32"), ("float64", "F64"), (ml_dtypes.bfloat16, "BF16")],
)
def test_arrays_of_each_float_type_are_read_as_float32(path, arrays, dtype, name):
    stored = {key: array.astype(dtype) for key, array in arrays.items()}
    write_safetensors(path, stored, {})
    checkpoint = open_checkpoint(path)
    assert checkpoint.container == "safetensors"
    assert {key: entry.shape for key, entry in checkpoint.entries.items()} == {k: a.shape for k, a in arrays.items()}
    assert {entry.dtype for entry in checkpoint.entries.values()} == {name}
    read = dict(checkpoint.read(arrays))
    for key, array in stored.items():
        assert read[key].dtype == "float32" and read[key].flags.writeable
        np.testing.assert_array_equal(read[key], array.astype("float32"))


def test_files_of_safetensors_package_are_read(path, arrays):
    safetensors.numpy.save_file(arrays, path, metadata={"format": "pt", "by": "another"})
    assert open_checkpoint(path).facts == {"format": "pt", "by": "another"}
    refuses("does not contain 'nothing'", list, open_checkpoint(path).read(["nothing"]), error=KeyError)
    for file in (path, *GOLDEN_FOLDER.glob("*.safetensors")):
        expected = safetensors.numpy.load_file(file)
        found = SafetensorsFile(file)
        assert found.entries.keys() == expected.keys()
        # Files of timm also contain integers, the batch counters of norms.
        floats = [key for key, array in expected.items() if array.dtype.kind == "f"]
        assert all(np.array_equal(array, expected[key]) for key, array in found.read(floats))


def entry(**changes):
    return {**TWO, "a": {**TWO["a"], **changes}}


def test_integers_are_listed_and_refused_when_read(path):
    file = SafetensorsFile(write(path, entry(dtype="I64", shape=[1]), 20))
    assert set(file.entries) == {"a", "b"} and dict(file.read(["b"]))
    refuses("'a' is of dtype I64, expected floats", dict, file.read(["a"]))


@pytest.mark.parametrize(
    "header, size, expected",
    [
        ({"__metadata__": {"format": "pt"}}, 0, "holds no arrays"),
        (b"{", 0, "invalid JSON in header"),
        (entry(dtype="I32", shape=[2]), 20, "'a' is of dtype I32, expected floats"),
        (entry(shape=[3]), 20, "invalid shape"),
        (entry(shape=[1 << 62, 1 << 62]), 20, "overflow"),
        (entry(data_offsets=[4, 12]), 20, "invalid offset for tensor `a`"),
    ],
)
def test_invalid_header_is_refused(path, header, size, expected):
    with pytest.raises(ValueError, match="file.safetensors") as error:
        SafetensorsFile(write(path, header, size))
    assert expected in str(error.value)


def test_header_longer_than_file_is_refused(path):
    path.write_bytes((1 << 40).to_bytes(8, "little") + b"{}" + bytes(20))
    check_unreadable("header too large", path)
    path.write_bytes(b"1234")
    refuses("truncated", SafetensorsFile, path)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e300])
def test_array_with_nan_or_infinity_is_refused(path, arrays, wrong):
    arrays["c/kernel"] = arrays["c/kernel"].astype("float64" if wrong == 1e300 else "float32")
    arrays["c/kernel"][1, 1, 1, 1] = wrong
    write_safetensors(path, arrays, {})
    refuses("'c/kernel' holds 1 NaN or infinite", contents, path)
    assert len(dict(open_checkpoint(path).read(["a/bias"]))) == 1


def test_bit_flip_in_own_header_is_refused(path, arrays):
    write_safetensors(path, arrays, {"grid": [4, 6]})
    data = path.read_bytes()
    for place in range(8 + int.from_bytes(data[:8], "little")):
        path.write_bytes(flipped(data, place, place % 8))
        refuses("file.safetensors", lambda: list(open_checkpoint(path).read(["a/bias"])))


def test_damage_in_array_is_found_when_another_is_read(path, arrays):
    write_safetensors(path, arrays, {})
    data = path.read_bytes()
    path.write_bytes(flipped(data, len(data) - 1, 0))
    refuses("the SHA-256 of its contents is", lambda: next(open_checkpoint(path).read(["b/kernel"])))


def test_own_facts_without_digest_are_refused(path):
    write(path, {**TWO, "__metadata__": {"keras_vit": "{}"}})
    check_unreadable(DIGEST, path)
