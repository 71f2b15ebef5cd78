import zipfile

import h5py
import keras
import numpy as np
import pytest

from keras_vit.weights.read import open_checkpoint
from tests.tiny import build, randomize
from tests.weights.read.damage import check_unreadable, contents, refusal

RATES = dict.fromkeys(("dropout_rate", "attention_dropout_rate", "drop_path_rate", "patch_dropout_rate"), 0.1)
RICH = {"num_registers": 2, "layer_scale_init": 0.1, "pooling": "map", "representation_size": 8, "qk_norm": True}
OTHER_LAYOUTS = [
    ({"layers/dense/vars/2": np.ones(2, "int32")}, "'head/2' is of dtype int32"),
    ({"layers/dense/vars/2": "text"}, "'head/2' is of dtype object"),
    ({"layers/dense/vars/2/deeper": np.ones(2, "f4")}, "writes no arrays"),
    ({"layers/dense/vars/2": h5py.Empty("f4")}, "of shape None"),
    ({"layers/dense/kernel": np.ones(2, "f4")}, "writes no arrays"),
    ({"vars": np.ones(2, "f4")}, "writes no arrays"),
    ({"layers/dense/vars/2": np.full(2, np.nan, "f4")}, "'head/2' holds 2 NaN"),
    ({"layers/head/vars/1": np.ones(2, "f4")}, "holds 'head/1' twice"),
    ({"model_weights/dense/kernel": np.ones(2, "f4")}, "layout of Keras 2"),
]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.weights.h5"


def test_weights_are_keyed_by_layer_names(path):
    model = randomize(build(**RICH, **RATES))
    model.save_weights(path)
    checkpoint = open_checkpoint(path)
    assert checkpoint.container == "h5" and checkpoint.facts == {}
    assert len(checkpoint.entries) == len(model.weights)
    layer = model.get_layer
    expected = {"block_00/attention/qkv/0": layer("block_00").attention.qkv.kernel, "head/0": layer("head").kernel}
    expected |= {"patch_embedding/1": layer("patch_embedding").bias, "registers/0": layer("registers").weights[0]}
    for key, array in checkpoint.read(expected):
        assert checkpoint.entries[key].shape == array.shape and array.dtype == "float32"
        np.testing.assert_array_equal(array, expected[key].numpy())


def test_optimizer_and_generator_states_are_ignored(path):
    model = build()
    model.compile("adam")
    model.optimizer.build(model.trainable_variables)
    model.save_weights(path)
    with h5py.File(path) as file:
        assert "optimizer" in file
    assert len(open_checkpoint(path).entries) == len(model.weights)
    write(path, **{"layers/dropout/seed_generator/vars/0": np.zeros(2, "uint32")})
    assert list(open_checkpoint(path).entries) == ["head/0", "head/1"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_other_float_types_are_read_as_float32(path, dtype):
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(3, name="a", dtype=dtype, bias_initializer="normal")(inputs))
    model.save_weights(path)
    _, read = contents(path)
    for i, weight in enumerate(model.weights):
        np.testing.assert_array_equal(read[f"a/{i}"], keras.ops.convert_to_numpy(keras.ops.cast(weight, "float32")))
    _, read = contents(write(path, **{"layers/dense/vars/2": np.array([0.1, -0.2])}))
    np.testing.assert_array_equal(read["head/2"], np.array([0.1, -0.2], "float32"))


def write(path, **datasets):
    """Writes a file in Keras' layout with one head and the given datasets."""
    with h5py.File(path, "w") as file:
        group = file.create_group("layers/dense/vars")
        group.attrs["name"] = "head"
        group["0"] = np.ones((3, 2), "float32")
        group["1"] = np.ones(2, "float32")
        for name, value in datasets.items():
            file[name] = value
    return path


def test_external_and_soft_links_are_refused(path, tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["secret"] = np.ones(2, "float32")
    for link in (h5py.ExternalLink("other.h5", "/secret"), h5py.SoftLink("/layers/dense/vars/1")):
        for place in ("layers/dense/vars/2", "layers/other", "vars"):
            write(path, **{place: link})
            assert "is a link" in refusal(path)


def test_hard_links_are_refused(path):
    places = {"/layers": "layers/dense/again", "/": "layers/again", "/layers/dense/vars/0": "layers/x"}
    for target, place in places.items():
        write(path)
        with h5py.File(path, "a") as file:
            file[place] = file[target]
        assert "under another name" in refusal(path)


def test_arrays_stored_in_other_ways_are_refused(path, tmp_path):
    layout = h5py.VirtualLayout((2,), "float32")
    layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "secret", (2,))
    (tmp_path / "raw").write_bytes(bytes(8))
    makers = {
        "virtual": lambda group: group.create_virtual_dataset("2", layout),
        "external": lambda group: group.create_dataset("2", (2,), "f4", external=[(str(tmp_path / "raw"), 0, 8)]),
        "chunked": lambda group: group.create_dataset("2", data=np.ones(9, "f4"), chunks=(3,)),
        "compressed": lambda group: group.create_dataset("2", data=np.ones(9, "f4"), compression="gzip"),
    }
    for make in makers.values():
        write(path)
        with h5py.File(path, "a") as file:
            make(file["layers/dense/vars"])
        assert "virtual, external, chunked or compressed" in refusal(path)
    write(path)
    with h5py.File(path, "a") as file:
        file["layers/dense/vars"].create_dataset("2", (1 << 20, 1 << 20), "f4")
    assert "does not match its 0 bytes" in refusal(path)


@pytest.mark.parametrize("datasets, expected", OTHER_LAYOUTS)
def test_layout_other_than_keras_is_refused(path, datasets, expected):
    assert expected in refusal(write(path, **datasets))


def test_keras_2_empty_and_whole_model_files_are_refused(path, tmp_path):
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = ["dense"]
        file["dense/dense/kernel:0"] = np.ones(2, "f4")
    assert "layout of Keras 2" in refusal(path)
    with h5py.File(path, "w"):
        pass
    assert "holds no arrays in the layout of Keras 3" in refusal(path)
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("metadata.json", "config.json", "model.weights.h5"):
            archive.writestr(name, "{}")
    check_unreadable(r"keras.saving.load_model", path)


@pytest.mark.parametrize("signature", [b"TREE", b"SNOD", b"HEAP", b"GCOL"])
def test_damaged_structure_is_refused_without_sidecar(path, signature):
    """Random flips could hang or crash the HDF5 library, which has no checksums, so signatures are reversed."""
    write(path)
    data = path.read_bytes()
    assert signature in data
    path.write_bytes(data.replace(signature, signature[::-1]))
    refusal(path)


def test_truncation_is_refused_without_sidecar(path):
    write(path)
    data = path.read_bytes()
    for end in np.random.default_rng(0).integers(1, len(data), size=40):
        path.write_bytes(data[:end])
        refusal(path)
