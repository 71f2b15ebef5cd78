import functools
import json

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

from keras_vit.data import from_dataframe
from keras_vit.distillation import Distiller
from keras_vit.training.run_record import data_of, difference, goes_on, plain_rate, record_of
from tests.distillation.models import conv_teacher, linear_student
from tests.tiny import build


def record(model=None, optimizer=None, data=None):
    model = model or build(num_layers=1)
    model.compile(optimizer or keras.optimizers.Adam(0.1), "mse")
    return record_of(model, data)


def test_record_of_a_rebuilt_model_is_equal():
    def layers():
        return [keras.Input((4, 4, 3)), keras.layers.RandomCrop(2, 2), keras.layers.Flatten(), keras.layers.Dense(2)]

    # The default names and seeds of the layers differ.
    first, second = (record(keras.Sequential(layers())) for _ in range(2))
    assert difference(json.loads(json.dumps(first)), second) is None
    assert difference(json.loads(json.dumps(record())), record()) is None


def test_record_of_a_rebuilt_teacher_ignores_dropout_seeds():
    records = [record(Distiller(linear_student(), conv_teacher())) for _ in range(2)]
    student, teacher = linear_student(), conv_teacher()
    teacher.set_weights([weight + 1 for weight in teacher.get_weights()])
    assert difference(*records) is None
    assert difference(records[0], record(Distiller(student, teacher))).startswith("model.unsaved")


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"dropout_rate": 0.5}, "dropout.class_name 'TransformerBlock' and not 'Dropout'"),
        ({"activation": "relu"}, "activation 'gelu_tanh' and not 'relu'"),
    ],
)
def test_record_difference_names_changed_arguments(changes, place):
    found = difference(record(), record(build(**{"num_layers": 1, **changes})))
    assert found.startswith("model.layers") and found.endswith(place), found


def test_record_difference_names_changed_optimizers():
    def schedule(steps):
        return keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, steps))

    assert difference(record(), record(optimizer=keras.optimizers.Adam(0.1, beta_1=0.8))).startswith("optimizer.beta_1")
    found = difference(record(optimizer=schedule(10)), record(optimizer=schedule(20)))
    assert found == "optimizer.learning_rate.config.decay_steps 10 and not 20"
    assert difference(record(), record(optimizer=keras.optimizers.Adam(0.2))).startswith("learning_rate 0.1")
    assert plain_rate(schedule(3)) is None


def test_data_record_has_sizes_and_a_sample():
    x, y = np.arange(300.0).reshape(100, 3), np.zeros(100)
    assert data_of(x, y) == data_of(x.copy(), y, batch_size=32)
    for other in (data_of(x + 1, y), data_of(x[:99], y[:99]), data_of(x, y, batch_size=5), data_of(x)):
        assert difference(data_of(x, y), other)
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    assert data_of(dataset.batch(4), steps=25) == data_of(dataset.batch(4), steps=25)
    assert difference(data_of(dataset.batch(4), steps=25), data_of(dataset.batch(5), steps=20)) == "steps 25 and not 20"
    dataset.file_paths = ["/jobs/1/a.png", "/jobs/1/b.png"]
    first, dataset.file_paths = data_of(dataset), ["/jobs/2/a.png", "/jobs/2/b.png"]
    assert data_of(dataset) == first
    dataset.file_paths = ["/jobs/2/a.png", "/jobs/2/c.png"]
    assert difference(first, data_of(dataset)).startswith("files")
    assert not goes_on(dataset.batch(4)) and not goes_on(dataset.batch(4), steps_per_epoch=25)
    assert goes_on(dataset.batch(4).repeat(), steps_per_epoch=25) and goes_on(x, steps_per_epoch=3)
    assert not goes_on(x, batch_size=10, steps_per_epoch=10)


def test_data_record_of_a_shard_equals_the_whole(tmp_path):
    keras.utils.save_img(tmp_path / "0.png", np.zeros((8, 8, 3)))
    table = {"path": [tmp_path / "0.png"] * 4, "label": [0, 1, 0, 1]}
    options = {"image_size": 8, "batch_size": 4, "drop_remainder": True}
    one, part = (from_dataframe(table, **options, **more) for more in ({}, {"num_shards": 2, "shard_index": 1}))
    assert part.element_spec[0].shape[0] == 2
    assert data_of(part) == data_of(one) and "(4, 8, 8, 3)" in data_of(one)["spec"]


def test_record_of_objects_without_config():
    def loss(weight, y, prediction):
        return weight * keras.ops.mean(keras.ops.square(y - prediction))

    model = build(num_layers=1)
    model.compile("sgd", functools.partial(loss, 2.0))
    assert record_of(model, None)["loss"]["class"] == "partial"
    strange = scipy.sparse.csr_matrix(np.eye(3)), np.array(["a", None, 3], object)
    assert difference(data_of(*strange), data_of(*strange)) is None
    json.dumps(data_of(*strange))
    ragged = tf.ragged.constant([[1], [2, 3]])
    assert data_of(ragged) == data_of(ragged)


def test_difference_ignores_keys_of_one_record():
    assert difference({"a": 1, "old": 2}, {"a": 1, "new": 3}) is None
    assert difference({"a": [{"name": "b", "c": float("nan")}]}, {"a": [{"name": "b", "c": float("nan")}]}) is None
    assert difference([1, 2], [1]) == "length 2 and not 1"
    assert difference({"a": [{"name": "b", "c": 1}]}, {"a": [{"name": "b", "c": 2}]}) == "a.b.c 1 and not 2"
