"""EfficientNets of other code bases: timm, the official TensorFlow code and keras.applications."""

import json
import logging
import shutil
import sys

import h5py
import keras
import numpy as np
import pytest
from keras import ops
from safetensors.numpy import load_file

import keras_vit
from tests.contract import randomize
from tests.golden import GOLDEN_FOLDER
from tests.models.efficientnet.test_model import REPEATS, WIDTHS, build
from tests.weights.helpers import check_not_saved, check_refused, outputs, timm_folder

FOLDER = "timm_efficientnet"
_NORM = ("gamma", "beta", "moving_mean", "moving_variance")
OTHER_NETWORKS = [
    ("tf_efficientnet_lite0", {}, "'tf_efficientnet_lite0' of timm is not supported. Expected efficientnet_X or"),
    ("efficientnet_b0_gn", {}, "'efficientnet_b0_gn' of timm is not supported"),
    ("efficientnet_b0", {"global_pool": "max"}, "global_pool='max' in its config is not supported"),
    ("efficientnet_b0", {"model_args": {"act_layer": "relu"}}, "act_layer='relu' in its config is not supported"),
    ("efficientnet_b0", {"model_args": {"bn_eps": -1}}, "`bn_eps`. Expected a number above 0, at most 1. Received: -1"),
]
FILE_NAMES = [
    ("tf_efficientnet_l2_ns_475-bebbd00a.pth", 475, "same", 0.485),
    ("tf_efficientnet_b0_ap-f262efe1.pth", 224, "same", 0.5),
    ("tf_efficientnet_b0-0af12548.pth", 224, "same", 0.485),
    ("efficientnet_b0_ra-3dd342df.pth", 224, "symmetric", 0.485),
]


def settle(model, scale=1):
    """Sets the statistics of the norms, without which outputs hardly depend on the images."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = 0.0
    x = scale * np.random.default_rng(3).normal(0.5, 0.3, size=(6, *model.input_shape[1:])).astype("float32")
    model(x, training=True)
    return model


def drawn(**changes):
    model = build(drop_path_rate=0.0, **changes)
    randomize(model, np.random.default_rng(0))
    return model


def values(model):
    return {w.path: ops.convert_to_numpy(w) for w in model.weights}


@pytest.fixture
def golden(tmp_path):
    """Returns a function that writes the golden weights as a folder of a timm architecture."""

    def write(name, **config):
        config = {"num_classes": 5, "pretrained_cfg": {"input_size": [3, 64, 96]}, **config}
        return timm_folder(tmp_path / name, FOLDER, architecture=name, **config)

    return write


@pytest.mark.every_backend
@pytest.mark.parametrize("name, prefix", [("tf_efficientnet_b0", "official/"), ("efficientnet_b0", "own/")])
def test_timm_folder_gives_logits_of_timm(golden, name, prefix):
    io = np.load(GOLDEN_FOLDER / f"{FOLDER}.io.npz")
    model = keras_vit.from_pretrained(golden(name), image_size=(None, None))
    x = io["images"]
    np.testing.assert_allclose(outputs(model, x), io[f"{prefix}logits"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(outputs(model, x[:, :37, :70]), io[f"{prefix}cut/logits"], rtol=1e-4, atol=1e-5)


def test_timm_folder_gives_settings_and_short_report(golden, caplog):
    model = keras_vit.from_pretrained(golden("tf_efficientnet_b0"))
    assert (model.config.padding, model.config.batch_norm_epsilon, model.config.image_size) == ("same", 1e-3, (64, 96))
    args = {"pad_type": "same", "bn_eps": 1e-4, "drop_path_rate": 0.2}
    config = keras_vit.from_pretrained(golden("efficientnet_b1", model_args=args)).config
    assert (config.padding, config.batch_norm_epsilon) == ("same", 1e-4)
    assert keras_vit.from_pretrained(golden("tf_efficientnet_l2_ns_475")).config.padding == "same"
    caplog.clear()
    with caplog.at_level(logging.INFO, "keras_vit"):
        keras_vit.from_pretrained(golden("efficientnet_b0"))
    (line,) = [line for line in caplog.text.splitlines() if "num_batches_tracked" in line]
    assert "such as" in line and "holds no weights of the model" in line


@pytest.mark.parametrize("name, config, message", OTHER_NETWORKS)
def test_other_networks_of_timm_are_refused(golden, name, config, message):
    check_refused(message, golden(name, **config))


def test_state_dict_needs_padding_and_epsilon():
    path = GOLDEN_FOLDER / f"{FOLDER}.safetensors"
    check_refused("Pass preprocessing=, padding=, batch_norm_epsilon= to from_pretrained", path)
    settings = {"padding": "symmetric", "batch_norm_epsilon": 1e-5, "image_size": (64, 96)}
    model = keras_vit.from_pretrained(path, preprocessing=keras_vit.Preprocessing(), **settings)
    io = np.load(GOLDEN_FOLDER / f"{FOLDER}.io.npz")
    np.testing.assert_allclose(outputs(model, io["images"]), io["own/logits"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name, size, padding, mean", FILE_NAMES)
def test_published_file_name_gives_settings(tmp_path, name, size, padding, mean):
    torch = pytest.importorskip("torch")
    arrays = load_file(GOLDEN_FOLDER / f"{FOLDER}.safetensors")
    torch.save({key: torch.from_numpy(array) for key, array in arrays.items()}, tmp_path / name)
    model = keras_vit.from_pretrained(tmp_path / name)
    assert (model.config.image_size, model.config.padding) == ((size, size), padding)
    assert model.preprocessing.mean[0] == mean and model.preprocessing.antialias
    assert model.config.batch_norm_epsilon == {"same": 1e-3, "symmetric": 1e-5}[padding]


@pytest.mark.parametrize("changes", [{}, {"padding": "symmetric", "batch_norm_epsilon": 0.01, "num_classes": 0}])
def test_saved_files_give_same_model(tmp_path, changes):
    model = settle(drawn(preprocessing={"mean": 0.5}, **changes))
    keras_vit.save_weights(model, tmp_path / "model.safetensors", "timm")
    model.save_weights(tmp_path / "model.weights.h5")
    x = np.random.default_rng(0).normal(size=(2, 33, 48, 3)).astype("float32")
    again = keras_vit.from_pretrained(tmp_path / "model.safetensors")
    assert again.config == model.config
    np.testing.assert_array_equal(outputs(again, x), outputs(model, x))
    settings = {"padding": "same", "batch_norm_epsilon": 1e-3, "preprocessing": model.preprocessing, **changes}
    again = keras_vit.from_pretrained(tmp_path / "model.weights.h5", image_size=(33, 48), **settings)
    assert again.config == model.config


def test_saved_timm_folder_names_variant(tmp_path):
    own = {"padding": "symmetric", "batch_norm_epsilon": 1e-5, "in_channels": 1}
    for variant, changes, name, args in (
        ("B1", {"num_classes": 0}, "tf_efficientnet_b1", {}),
        ("B0", own, "efficientnet_b0", {"in_chans": 1}),
    ):
        model = keras_vit.EfficientNet(variant, **changes)
        folder = tmp_path / f"{variant}{len(changes)}"
        keras_vit.save_weights(model, folder, "timm")
        config = json.loads((folder / "config.json").read_text())
        assert (config["architecture"], config["model_args"]) == (name, args)
        assert config["pretrained_cfg"]["first_conv"] == "conv_stem"
        assert keras_vit.from_pretrained(folder).config == model.config
    for model in (build(), keras_vit.EfficientNet("B0", batch_norm_epsilon=0.01)):
        message = "has a size or options for which timm has no name.*Write a state dict: a path that ends in"
        check_not_saved(message, model, tmp_path / "other", "timm")
    check_not_saved("`format`. Expected 'timm', the only format of efficientnet models", build(), tmp_path / "tiny.npz")


def official_names(model):
    """Returns {weight: name in the official code}, independently of the table in the package."""
    found = {"stem_conv/kernel": "stem/conv2d/kernel", "top_conv/kernel": "head/conv2d/kernel"}
    for name in _NORM:
        found[f"stem_norm/{name}"] = f"stem/tpu_batch_normalization/{name}"
        found[f"top_norm/{name}"] = f"head/tpu_batch_normalization/{name}"
    found |= {f"head/{name}": f"head/dense/{name}" for name in ("kernel", "bias")}
    for i, block in enumerate(model.config.block_names):
        layers = ["depthwise", "project"] if block.startswith("stage_1") else ["expand", "depthwise", "project"]
        convs = [layer for layer in layers if layer != "depthwise"]
        for suffix, layer in zip(("", "_1", "_2"), layers, strict=False):
            for name in _NORM:
                found[f"{block}/{layer}_norm/{name}"] = f"blocks_{i}/tpu_batch_normalization{suffix}/{name}"
        for suffix, layer in zip(("", "_1"), convs, strict=False):
            found[f"{block}/{layer}_conv/kernel"] = f"blocks_{i}/conv2d{suffix}/kernel"
        found[f"{block}/depthwise_conv/kernel"] = f"blocks_{i}/depthwise_conv2d/depthwise_kernel"
        for suffix, layer in (("", "reduce"), ("_1", "expand")):
            for name in ("kernel", "bias"):
                found[f"{block}/squeeze_excitation/{layer}/{name}"] = f"blocks_{i}/se/conv2d{suffix}/{name}"
    return found


def write_official(folder, model, averages=True):
    tf = pytest.importorskip("tensorflow")
    names, weights = official_names(model), values(model)
    assert names.keys() == weights.keys()
    rng = np.random.default_rng(5)
    folder.mkdir(parents=True)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:

        def variable(name, value):
            tf.compat.v1.get_variable(name, initializer=tf.constant(value), use_resource=False)

        for weight, name in names.items():
            value = weights[weight]
            value = value[None, None] if "/se/" in name and value.ndim == 2 else value
            scoped = f"efficientnet-b0/{name}"
            if averages:
                variable(f"{scoped}/ExponentialMovingAverage", value)
                variable(scoped, rng.normal(size=value.shape).astype("float32"))
            else:
                variable(scoped, value)
            if "moving" not in name:
                variable(f"{scoped}/RMSProp", rng.normal(size=value.shape).astype("float32"))
                variable(f"{scoped}/RMSProp_1", rng.normal(size=value.shape).astype("float32"))
        variable("global_step", np.int64(218_949))
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(folder / "model.ckpt"), write_meta_graph=False)
    return folder


@pytest.mark.parametrize("place", ["", "model.ckpt.index", "model.ckpt.data-00000-of-00001"])
def test_averages_of_official_checkpoint_are_loaded(tmp_path, place, caplog):
    model = drawn()
    folder = write_official(tmp_path / "noisy_student_efficientnet-l2_475", model)
    with caplog.at_level(logging.INFO, "keras_vit"):
        again = keras_vit.from_pretrained(folder / place)
    assert again.config.padding == "same" and again.config.batch_norm_epsilon == 1e-3
    assert (again.config.widths, again.config.repeats, again.config.image_size) == (WIDTHS, REPEATS, (475, 475))
    assert again.preprocessing.mean == (0.485, 0.456, 0.406) and not again.preprocessing.antialias
    for (path, a), b in zip(values(again).items(), values(model).values(), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=path)
    assert "global_step: the file's 'ExponentialMovingAverage' is read" in caplog.text
    assert f"{len(model.weights)} variables before averaging" in caplog.text
    assert "variables of the optimizer" in caplog.text and "assumed" not in caplog.text


def test_official_checkpoint_without_averages_is_reported(tmp_path):
    model, again = drawn(), build()
    folder = write_official(tmp_path / "efficientnet-b0", model, averages=False)
    report = keras_vit.load_weights(again, folder)
    assert report.source == "efficientnet" and len(report.loaded) == len(model.weights)
    count = len(model.weights)
    expected = f"{count} of {count} variables have no average; they are loaded as they are"
    assert report.assumed == {"ExponentialMovingAverage": expected}
    x = np.random.default_rng(0).normal(size=(2, 33, 48, 3)).astype("float32")
    np.testing.assert_array_equal(outputs(again, x), outputs(model, x))
    # Only the names of Noisy Student folders imply the scaling of images.
    check_refused("Pass preprocessing= to from_pretrained", folder)


def test_damage_and_missing_tensorflow_are_named(tmp_path, monkeypatch):
    folder = write_official(tmp_path / "efficientnet-b0", drawn())
    data = folder / "model.ckpt.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    # Every array of more than 50 bytes gets a flipped bit.
    for i in range(0, len(content), 50):
        content[i] ^= 1
    data.write_bytes(content)
    check_refused("Cannot read weights from", folder, into=build())
    data.unlink()
    check_refused("Cannot read weights from", folder, into=build())
    shutil.copy(folder / "model.ckpt.index", folder / "other.index")
    check_refused("holds 2 checkpoints; pass the path of one", folder, into=build())
    folder = write_official(tmp_path / "whole", drawn())
    model = build()
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    message = "needs TensorFlow, which cannot be imported. Install tensorflow"
    check_refused(message, folder, into=model, error=ImportError)


def application():
    keras.utils.set_random_seed(0)
    model = keras.applications.EfficientNetB0(weights=None, input_shape=(65, 96, 3), classes=7)
    rng = np.random.default_rng(0)
    for weight in model.weights:
        if "normalization" not in weight.path:
            value = ops.convert_to_numpy(weight)
            if weight.path.endswith(("gamma", "variance")):
                weight.assign(rng.uniform(0.5, 1.5, value.shape))
            elif value.ndim == 1:
                weight.assign(rng.normal(0, 0.2, value.shape))
    return settle(model, 255)


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    model = application()
    path = tmp_path_factory.mktemp("app") / "model.weights.h5"
    model.save_weights(path)
    return model, path


def raw_images():
    return np.random.default_rng(1).uniform(0, 255, (2, 65, 96, 3)).astype("float32")


def test_keras_applications_compute_the_same(app):
    theirs, path = app
    options = {"image_size": (65, 96), "include_preprocessing": True}
    model = keras_vit.from_pretrained(path, classifier_activation="softmax", **options)
    assert (model.config.widths[0], model.config.padding, model.name) == (32, "same", "efficientnet_B0")
    expected = outputs(theirs, raw_images())
    assert np.abs(expected[0] - expected[1]).max() > 0.01
    np.testing.assert_allclose(outputs(model, raw_images()), expected, atol=1e-5, rtol=1e-4)
    # By default, the model returns logits.
    theirs.layers[-1].activation = keras.activations.linear
    expected = outputs(theirs, raw_images())
    theirs.layers[-1].activation = keras.activations.softmax
    logits = outputs(keras_vit.from_pretrained(path, **options), raw_images())
    assert np.abs(logits - expected).max() <= 1e-4 * np.abs(expected).max()
    into = keras_vit.EfficientNetB0(image_size=(65, 96), num_classes=7, preprocessing=model.preprocessing)
    report = keras_vit.load_weights(into, path, source="keras_applications")
    assert len(report.loaded) == len(into.weights)


def write_published(path, theirs):
    """Writes the Keras 2 layout of the published files: groups of layers that list the names of their arrays."""
    names = {
        "Conv2D": ("kernel", "bias"),
        "DepthwiseConv2D": ("depthwise_kernel",),
        "Dense": ("kernel", "bias"),
        "BatchNormalization": ("gamma", "beta", "moving_mean", "moving_variance"),
        "Normalization": ("mean", "variance", "count"),
    }
    constants = [np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225]), np.int64(0)]
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = [layer.name.encode() for layer in theirs.layers]
        for layer in theirs.layers:
            kind = type(layer).__name__
            arrays = constants if kind == "Normalization" else [ops.convert_to_numpy(w) for w in layer.weights]
            own = [f"{layer.name}/{name}:0" for name in names.get(kind, ())][: len(arrays)]
            group = file.create_group(layer.name)
            group.attrs["weight_names"] = [name.encode() for name in own]
            for name, array in zip(own, arrays, strict=True):
                group[name] = array


def test_published_keras_applications_file_is_read(app, tmp_path):
    theirs, _ = app
    write_published(tmp_path / "efficientnetb0.h5", theirs)
    # Keras can read the file.
    twin = application()
    twin.load_weights(tmp_path / "efficientnetb0.h5")
    options = {"image_size": (65, 96), "include_preprocessing": True, "classifier_activation": "softmax"}
    model = keras_vit.from_pretrained(tmp_path / "efficientnetb0.h5", **options)
    assert (model.preprocessing.mean, model.preprocessing.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    # weights="imagenet" scales by the file's statistics and by a second layer.
    scaled = (raw_images() / 255 - np.float32([0.485, 0.456, 0.406])) / np.float32([0.229, 0.224, 0.225])
    expected = outputs(theirs, scaled * 255)
    np.testing.assert_allclose(outputs(model, raw_images()), expected, atol=1e-4, rtol=1e-3)
