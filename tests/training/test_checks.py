import logging

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.arguments import names_differ
from keras_vit.data import from_dataframe, from_directory
from keras_vit.data.source import tf
from keras_vit.training import SAM, LayerDecay, fit, freeze, preflight
from keras_vit.training.checks import look as read_batches
from keras_vit.training.checks import step_problems
from tests.errors import refuses
from tests.tiny import assert_close, build

RNG = np.random.default_rng(0)
RAW = RNG.integers(0, 256, (10, 16, 16, 3)).astype("uint8")
IMAGES = (RAW / 127.5 - 1).astype("float32")
LABELS = np.arange(10) % 5
SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
CATEGORICAL = keras.losses.CategoricalCrossentropy(from_logits=True)
MIXED = (0.7 * np.eye(5)[LABELS] + 0.3 * np.eye(5)[LABELS[::-1]]).astype("float32")
EXTRA = RNG.normal(size=(10, 4)).astype("float32")
UNFITTING_LABELS = [
    (LABELS + 1, SPARSE, "from 0 to 4.*from 1 to 5. If labels are counted from 1"),
    # Only the last label is wrong.
    (np.array([0] * 9 + [5]), SPARSE, "from 0 to 4, as the model has 5 outputs. Received: .* from 0 to 5"),
    (LABELS - 1, SPARSE, "from 0 to 4.*from -1 to 3"),
    (LABELS + 0.5, SPARSE, "Expected integers as labels. Received: numbers such as 0.5"),
    (np.array(list("abcde" * 2)), SPARSE, "Expected labels as integers from 0 to 4.*strings, such as 'a'"),
    (np.eye(5)[LABELS], SPARSE, "one-hot labels of shape .batch, 5.. Use CategoricalCrossentropy"),
    (MIXED, SPARSE, "mixed or smoothed labels of shape .batch, 5., as from MixUp and CutMix"),
    (LABELS, CATEGORICAL, "shape .batch,.. For integers, use SparseCategoricalCrossentropy"),
    (np.eye(7)[LABELS], CATEGORICAL, "shape .batch, 5., one number for each output.*shape .batch, 7."),
    (2 * np.eye(5)[LABELS], keras.losses.BinaryCrossentropy(from_logits=True), "labels of 0 to 1"),
    (np.where(MIXED > 0.5, np.nan, MIXED), CATEGORICAL, "finite labels"),
    (LABELS, "sparse_categorical_crossentropy", "from_logits=True, since the model gives logits"),
]
UNFITTING_IMAGES = [
    (RAW, "images of -1 to 1, as the model takes them. Received: values from 0 to 255"),
    (IMAGES[:, :8], "images of 16 x 16 x 3 .height.*Received: 8 x 16 x 3"),
    (np.full_like(IMAGES, np.nan), "finite"),
]


@pytest.fixture(scope="module")
def model():
    """Returns a model that tests may only compile."""
    keras.utils.set_random_seed(0)
    return build()


def look(model, data, loss=SPARSE, **options):
    model.compile("sgd", loss)
    return preflight(model, data, **{"verbose": 0, "batch_size": 4, **options})


def test_subclassed_model_with_several_outputs_passes():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.vit, self.dense = build(), keras.layers.Dense(2)

        def call(self, images):
            return {"a": self.vit(images), "b": self.dense(self.vit(images))}

    subclassed, data = Model(), tf.data.Dataset.from_tensor_slices((IMAGES, {"a": LABELS, "b": LABELS % 2})).batch(4)
    subclassed(IMAGES)
    assert look(subclassed, data, {"a": SPARSE, "b": SPARSE}).batch_shape == (4, 16, 16, 3)


def test_preflight_prints_one_screen_and_changes_nothing(model, capsys):
    before = [w.copy() for w in model.get_weights()]
    found = look(model, (IMAGES, LABELS), epochs=4, verbose=1)
    screen = capsys.readouterr().out
    assert screen == f"{found}\n" and len(screen.splitlines()) <= 25
    assert (found.num_images, found.steps, found.images_per_class) == (10, 12, (2, 2, 2, 2, 2))
    assert (found.trainable, found.frozen) == (model.count_params(), 0)
    assert found.values == (-1, 1) and found.expected_values == (-1, 1) and not found.warnings
    assert 1 < found.initial_loss < 3 and found.memory > 4 * found.trainable * 3
    for text in ("10 images, 5 outputs", "0 2, 1 2", "4 x 16 x 16 x 3 of -1 to 1", "SparseCategoricalCrossentropy of"):
        assert text in screen
    assert_close(before, model.get_weights())


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, i):
        return IMAGES[4 * i : 4 * i + 4], LABELS[4 * i : 4 * i + 4]


def test_preflight_accepts_all_data_of_fit(model):
    assert look(model, Batches()).steps == 3
    torch = pytest.importorskip("torch")
    dataset = torch.utils.data.TensorDataset(torch.tensor(IMAGES), torch.tensor(LABELS))
    assert look(model, torch.utils.data.DataLoader(dataset, 5)).steps == 2
    dataset = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).batch(4)
    found = look(model, dataset, epochs=2)
    assert found.steps == 6 and found.num_images is None and not found.counted_all
    assert found.images_per_class == (2, 2, 2, 1, 1)
    refuses("`steps_per_epoch` for data that never ends", look, model, dataset.repeat())
    assert look(model, dataset.repeat(), steps_per_epoch=7).steps == 7
    refuses("can be read again. Received: generator", look, model, (batch for batch in Batches()))
    refuses("single images'. Call `.batch", look, model, dataset.unbatch())
    refuses("Received: only images", look, model, dataset.map(lambda images, labels: images))
    named = dataset.map(lambda images, labels: {"image": images, "label": labels})
    refuses(r"a dict with the keys \['image', 'label'\]. Make tuples", look, model, named)


@pytest.mark.parametrize("labels, loss, message", UNFITTING_LABELS)
def test_preflight_labels_that_do_not_fit_the_loss(model, labels, loss, message):
    refuses(message, look, model, (IMAGES, labels), loss)


def test_preflight_loss_of_logits_of_a_softmax_model():
    model = build(classifier_activation="softmax")
    refuses("from_logits=False, since the model gives probabilities", look, model, (IMAGES, LABELS))
    assert look(model, (IMAGES, LABELS), "sparse_categorical_crossentropy").steps == 3
    # If the last operation is unknown, the values of the outputs decide.
    own = keras.layers.Activation(lambda x: keras.ops.exp(x) / keras.ops.sum(keras.ops.exp(x), -1, keepdims=True))
    logits = build()
    model = keras.Model(logits.input, own(logits.output))
    assert look(model, (IMAGES, LABELS), "sparse_categorical_crossentropy").steps == 3


def test_preflight_labels_that_fit_the_loss(model):
    assert look(model, (IMAGES, MIXED), CATEGORICAL).steps == 3
    assert look(model, (IMAGES, LABELS[:, None])).images_per_class == (2,) * 5
    several = (MIXED > 0).astype("float32")
    assert look(model, (IMAGES, several), keras.losses.BinaryCrossentropy(from_logits=True)).labels
    # The labels of other losses are not classes.
    found = look(model, (IMAGES, np.eye(5)[LABELS]), "mse")
    assert found.initial_loss > 0 and found.images_per_class is None and "chance" not in str(found)
    ignoring = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    found = look(model, (IMAGES, np.where(LABELS == 4, -1, LABELS)), ignoring)
    assert found.images_per_class == (2, 2, 2, 2, 0) and f"chance level is {np.log(5):.4g}" in str(found)
    one = build(num_classes=1)
    assert look(one, (IMAGES, LABELS * 0.5), "mse").steps == 3
    assert look(one, (IMAGES, LABELS % 2), keras.losses.BinaryCrossentropy(from_logits=True)).steps == 3


@pytest.mark.parametrize("images, message", UNFITTING_IMAGES)
def test_preflight_images_that_do_not_fit_the_model(model, images, message):
    refuses(message, look, model, (images, LABELS))
    refuses(f"In `validation_data`: .*{message}", look, model, (IMAGES, LABELS), validation_data=(images, LABELS))


def test_preflight_scaled_images_of_a_scaling_model():
    model = build(include_preprocessing=True)
    assert look(SAM(model), (RAW, LABELS)).expected_values == (0, 255)
    for images in (IMAGES, RAW / 255):
        refuses("include_preprocessing=True and scales", look, SAM(model), (images, LABELS))


def test_preflight_names_all_problems_at_once(model):
    refuses("(?s)several mistakes:\n1. Expected images.*\n2. .*labels", look, model, (RAW, LABELS + 1))


def test_preflight_logs_each_warning_once(model, caplog):
    with caplog.at_level(logging.WARNING, "keras_vit"):
        found = look(model, (RAW / 255, np.minimum(LABELS, 3)))
    assert len(caplog.messages) == len(found.warnings) == 2
    assert "scaled to 0..1" in caplog.messages[0] and "no images of 1 classes: 4" in caplog.messages[1]


def test_preflight_warns_of_float16_without_loss_scaling():
    inner = build(dtype="mixed_float16")
    outer = keras.Model(inner.input, keras.layers.Dense(5)(inner.get_layer("pre_logits").output))
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    for optimizer, number in (("sgd", 1), (scaled, 0), (LayerDecay.from_model(scaled, outer), 0)):
        outer.compile(optimizer, SPARSE)
        found = preflight(outer, (IMAGES, LABELS), verbose=0)
        assert sum("LossScaleOptimizer" in text for text in found.warnings) == number
    freeze(outer)
    outer.compile("sgd", SPARSE)
    assert not preflight(outer, (IMAGES, LABELS), verbose=0).warnings


def test_preflight_frozen_model_is_refused():
    model = build()
    model.trainable = False
    refuses("weights are all frozen", look, model, (IMAGES, LABELS))
    model.trainable = True
    freeze(model)
    assert look(model, (IMAGES, LABELS)).trainable == 12 * 5 + 5


def test_preflight_nan_weights_are_refused():
    model = build()
    model.head.set_weights([weight * np.nan for weight in model.head.get_weights()])
    refuses("Expected finite weights. Received: 2 with NaN.*'head/kernel'", look, model, (IMAGES, LABELS))


def test_preflight_other_class_order_is_refused():
    data = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).batch(4)
    data.class_names = list("abcde")
    model = build(class_names=list("edcba"))
    refuses("the model's classes in the same order.*layer 'normalization'", look, model, data)
    model.get_layer("normalization").class_names = list("abcde")
    assert look(model, data).class_names == tuple("abcde")
    data.num_classes = 6
    refuses("Expected a model of 6 outputs", look, model, data)


def test_preflight_accepts_a_model_without_loss():
    for data in ((IMAGES, LABELS), (IMAGES,), IMAGES):
        found = preflight(build(), data, batch_size=4, verbose=0)
        assert found.loss is found.initial_loss is None and (found.num_images, found.steps) == (10, 3)
    refuses("counted from 1", preflight, build(), (IMAGES, LABELS + 1), verbose=0)


@pytest.mark.backends("jax")
def test_preflight_batch_not_divisible_by_devices_is_refused(model):
    mesh = keras.distribution.DeviceMesh((4,), ["batch"], [f"cpu:{i}" for i in range(4)])
    model.compile("sgd", SPARSE)
    keras.distribution.set_distribution(keras.distribution.DataParallel(mesh))
    try:
        for size, uneven in ((4, 2), (5, 5)):
            message = f"batches that 4 devices can share. Received: a batch of {uneven} images.*a multiple of 4"
            refuses(message, preflight, model, (IMAGES, LABELS), batch_size=size)
    finally:
        keras.distribution.set_distribution(None)


def test_step_problems_ignore_a_dropped_last_batch():
    for full in (False, True):
        data = tf.data.Dataset.from_tensor_slices((IMAGES[:8], LABELS[:8])).batch(4, drop_remainder=full)
        data.num_images = 7
        assert len(list(step_problems(read_batches(data), 2, None, 4))) == (not full)


def test_preflight_accepts_nested_and_other_models():
    inputs = keras.Input((16, 16, 3))
    around = keras.Model(inputs, keras.layers.Dense(5)(build(num_classes=0)(inputs)))
    assert look(around, (IMAGES, LABELS)).num_classes == 5
    plain = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    found = look(plain, (RNG.normal(size=(6, 4)), RNG.normal(size=6)), "mse")
    assert found.num_classes == 1 and found.expected_values is None and found.images_per_class is None
    assert "mse" in str(found) and isinstance(keras_vit.training.preflight, type(look))


def test_numbers_as_class_names_are_compared_with_numbers():
    numbers = [str(i) for i in range(12)]
    assert names_differ(numbers, sorted(numbers)) and names_differ(["0", "1", "2"], ("0", "2"))
    assert not names_differ(numbers, [f"class{i}" for i in range(12)]) and not names_differ(numbers, [])


def test_classes_of_table_and_folders_are_compared_by_name(tmp_path):
    for i in range(12):
        (tmp_path / str(i)).mkdir()
        keras.utils.save_img(tmp_path / str(i) / "0.png", np.full((16, 16, 3), 20 * i), scale=False)
    table = {"path": [f"{i}/0.png" for i in range(12)], "label": list(range(12))}
    model = build(num_classes=12)
    model.compile("sgd", SPARSE)
    # Reading the pipelines takes long, so pass only their class names.
    folders, rows = (tf.data.Dataset.from_tensor_slices((np.zeros((12, 16, 16, 3)), range(12))).batch(4) for _ in "ab")
    folders.class_names = from_directory(tmp_path, preprocessing=model, training=False).class_names
    rows.class_names = from_dataframe(table, directory=tmp_path, preprocessing=model, training=False).class_names
    # The folder "10" comes before the folder "2".
    run = {"epochs": 1, "resume": tmp_path / "run", "verbose": 0}
    refuses("`validation_data` with the classes", preflight, model, rows, validation_data=folders)
    refuses("`validation_data` with the classes", fit, model, rows, validation_data=folders, **run)
    assert model.config.class_names is None
    fit(model, rows, **run)
    assert model.config.class_names == tuple(map(str, range(12)))
    refuses("data with the model's classes in the same order", fit, model, folders, **run)
    assert preflight(other := build(num_classes=12), folders, verbose=0).class_names == other.config.class_names


def test_preflight_checks_images_of_two_inputs():
    backbone, numbers = build(num_classes=0), keras.Input((4,), name="numbers")
    joined = keras.layers.Concatenate()([backbone.output, numbers])
    two = keras.Model([backbone.input, numbers], keras.layers.Dense(5)(joined))
    found = look(two, ([IMAGES, EXTRA], LABELS), epochs=2)
    assert (found.steps, found.batch_shape) == (6, (4, 16, 16, 3)) and found.images_per_class == (2,) * 5
    refuses("Received: values from 0 to 255", look, two, ([RAW, EXTRA], LABELS))
    refuses("images of 16 x 16 x 3", look, two, ([IMAGES[:, :8], EXTRA], LABELS))


def test_preflight_checks_labels_of_several_heads():
    backbone = build(num_classes=0)
    outputs = {name: keras.layers.Dense(size, name=name)(backbone.output) for name, size in (("kind", 5), ("age", 1))}
    heads = keras.Model(backbone.input, outputs)
    labels = {"kind": LABELS, "age": EXTRA[:, :1]}
    losses = {"kind": SPARSE, "age": "mse"}
    found = look(heads, (IMAGES, labels), losses, epochs=3)
    assert (found.steps, found.batch_shape[0], found.num_images) == (9, 4, 10)
    refuses("For the output 'kind': .*counted from 1", look, heads, (IMAGES, {**labels, "kind": LABELS + 1}), losses)
    refuses("For the output 'age': .*The softmax", look, heads, (IMAGES, labels), {"kind": SPARSE, "age": SPARSE})


def binary(kernel_scale, middle):
    """Returns a model of one logit, of which one image has the value 0.5 or half of the images have positive ones."""
    keras.utils.set_random_seed(1)
    model = build(num_classes=1, task="multi_label")
    kernel, bias = model.head.get_weights()
    model.head.set_weights([np.random.default_rng(0).normal(size=kernel.shape) * kernel_scale, bias])
    logits = model.predict(IMAGES, verbose=0)[:, 0]
    model.head.set_weights([model.head.get_weights()[0], np.array([middle(logits)])])
    return model, model.predict(IMAGES, verbose=0)


def test_preflight_metrics_of_probabilities_are_refused():
    model, logits = binary(0.5, lambda logits: -np.median(logits))
    labels, loss = (logits > 0).astype("float32"), keras.losses.BinaryCrossentropy(from_logits=True)
    metrics = keras.metrics
    for wrong in ("accuracy", metrics.Recall(), metrics.Precision(), metrics.AUC(), metrics.BinaryAccuracy()):
        model.compile("sgd", loss, metrics=[wrong])
        refuses("Expected metrics for logits.*Received", preflight, model, (IMAGES, labels), verbose=0)
    right = [metrics.Recall(thresholds=0.0), metrics.AUC(from_logits=True), metrics.BinaryAccuracy(threshold=0.0)]
    model.compile("sgd", loss, metrics=right)
    assert preflight(model, (IMAGES, labels), verbose=0).steps == 1
    assert model.evaluate(IMAGES, labels, verbose=0)[1:] == [1.0] * 3


def test_preflight_accepts_metrics_of_the_highest_logits():
    model = build()
    model.compile("sgd", CATEGORICAL, metrics=[keras.metrics.Precision(top_k=1, class_id=2)])
    assert preflight(model, (IMAGES, np.eye(5)[LABELS]), verbose=0).steps == 1


def test_preflight_logits_are_found_by_all_images():
    # The first image's logit could be a probability.
    model, _ = binary(2.0, lambda logits: 0.5 - logits[0])
    refuses("from_logits=True, since", look, model, (IMAGES, LABELS[:, None] % 2), "binary_crossentropy")


def test_preflight_softmax_of_another_task_is_refused():
    refuses("for one output.*The softmax of one output is always 1", look, build(num_classes=1), (IMAGES, LABELS % 2))
    several = np.tile(np.float32([1, 1, 0, 0, 0]), (10, 1))
    refuses("up to 2 classes per image", look, build(), (IMAGES, several), CATEGORICAL)
    model = build(task="multi_label")
    refuses("a loss for task='multi_label'.*BinaryCrossentropy", look, model, (IMAGES, np.eye(5)[LABELS]), CATEGORICAL)
    model = build(task="regression")
    refuses("a loss for task='regression'.*mse", look, model, (IMAGES, np.eye(5)[LABELS]), CATEGORICAL)
    refuses("each of the 5 outputs. Received: 1 per image", look, model, (IMAGES, LABELS.astype("float32")), "mse")


def test_fit_class_weights_of_several_labels_are_refused(tmp_path):
    model, several = build(), np.tile(np.float32([1, 1, 0, 0, 0]), (10, 1))
    model.compile("sgd", CATEGORICAL)
    options = {"resume": tmp_path, "class_weight": {0: 2.0}}
    refuses("one class per image for `class_weight`", fit, model, (IMAGES, several), 1, **options)
    refuses("`class_weight`. Expected a dict", fit, model, (IMAGES, LABELS), 1, resume=tmp_path, class_weight=[1.0])
