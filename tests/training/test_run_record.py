import functools
import json

import keras
import numpy as np
import scipy.sparse

from keras_vit.data import from_dataframe
from keras_vit.data.source import tf
from keras_vit.distillation import Distiller
from keras_vit.training.run_record import describe_data, describe_run, difference, plain_rate
from tests.distillation.models import conv_teacher, linear_student
from tests.tiny import build


def record(model=None, optimizer=None):
    model = model or build(num_layers=1)
    model.compile(optimizer or keras.optimizers.Adam(0.1), "mse")
    return describe_run(model)


def test_record_of_a_rebuilt_model_is_equal():
    def layers():
        return [keras.Input((4, 4, 3)), keras.layers.RandomCrop(2, 2), keras.layers.Flatten(), keras.layers.Dense(2)]

    # The default names and seeds of the layers differ.
    first, second = (record(keras.Sequential(layers())) for _ in range(2))
    assert difference(json.loads(json.dumps(first)), second) is None
    assert difference(json.loads(json.dumps(record())), record()) is None


def test_record_of_a_rebuilt_teacher_ignores_dropout_seeds():
    assert difference(*(record(Distiller(linear_student(), conv_teacher())) for _ in range(2))) is None


def test_record_difference_names_changed_optimizers():
    def schedule(steps):
        return keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, steps))

    assert difference(record(), record(optimizer=keras.optimizers.Adam(0.1, beta_1=0.8))).startswith("optimizer.beta_1")
    found = difference(record(optimizer=schedule(10)), record(optimizer=schedule(20)))
    assert found == "optimizer.learning_rate.config.decay_steps 10 and not 20"
    assert difference(record(), record(optimizer=keras.optimizers.Adam(0.2))).startswith("learning_rate 0.1")
    assert plain_rate(schedule(3)) is None


def described(data, batch=None, steps=None, **options):
    return describe_data(data, batch or (), steps, **options)


def test_data_record_has_sizes_and_values():
    x, y = np.arange(300.0).reshape(100, 3), np.zeros(100)
    assert described((x, y)) == described((x.copy(), y))
    one = y.copy()
    one[17] = 1
    for other in ((x + 1, y), (x[:99], y[:99]), (x,), (x, one)):
        assert difference(described((x, y)), described(other))
    assert difference(described((x, y), batch_size=4), described((x, y), batch_size=5)) == "batch_size 4 and not 5"
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    assert described(dataset.batch(4), steps=25) == described(dataset.batch(4), steps=25)
    assert difference(described(dataset.batch(4), steps=25), described(dataset.batch(5), steps=20)).startswith("steps")
    found = difference(described(dataset, (x[:4], y[:4])), described(dataset, (x[:4] + 1, y[:4])))
    assert found.startswith("first_batch.0.values")
    dataset.file_paths = ["/jobs/1/a.png", "/jobs/1/b.png"]
    first, dataset.file_paths = described(dataset), ["/jobs/2/a.png", "/jobs/2/b.png"]
    assert described(dataset) == first
    dataset.file_paths = ["/jobs/2/a.png", "/jobs/2/c.png"]
    assert difference(first, described(dataset)).startswith("files")


def test_data_record_of_a_shard_equals_the_whole(tmp_path):
    keras.utils.save_img(tmp_path / "0.png", np.zeros((8, 8, 3)))
    table = {"path": [tmp_path / "0.png"] * 4, "label": [0, 1, 0, 1]}
    options = {"image_size": 8, "batch_size": 4, "drop_remainder": True}
    one, part = (from_dataframe(table, **options, **more) for more in ({}, {"num_shards": 2, "shard_index": 1}))
    assert part.element_spec[0].shape[0] == 2
    batch = (np.zeros((2, 8, 8, 3)),)
    assert difference(described(part, batch), described(one, batch)) is None
    assert "(4, 8, 8, 3)" in described(one)["spec"] == described(part)["spec"]


def test_record_of_objects_without_config():
    def loss(weight, y, prediction):
        return weight * keras.ops.mean(keras.ops.square(y - prediction))

    model = build(num_layers=1)
    model.compile("sgd", functools.partial(loss, 2.0))
    assert describe_run(model)["loss"]["config"]["class"] == "partial"
    strange = scipy.sparse.csr_matrix(np.eye(3)), np.array(["a", None, 3], object)
    assert difference(described(strange), described(strange)) is None
    json.dumps(described(strange))
    ragged = tf.ragged.constant([[1], [2, 3]])
    assert described(ragged) == described(ragged)


def test_difference_ignores_keys_of_one_record():
    assert difference({"a": 1, "old": 2}, {"a": 1, "new": 3}) is None
    assert difference({"a": [{"name": "b", "c": float("nan")}]}, {"a": [{"name": "b", "c": float("nan")}]}) is None
    assert difference([1, 2], [1]) == "length 2 and not 1"
    assert difference({"a": [{"name": "b", "c": 1}]}, {"a": [{"name": "b", "c": 2}]}) == "a.b.c 1 and not 2"


def test_record_contains_the_value_of_a_custom_loss():
    def losses(scale):
        def loss(y, prediction):
            return scale * keras.ops.mean(keras.ops.square(y - prediction), -1)

        return loss

    model, batch = build(num_layers=1), (None, np.zeros((2, 5)))
    records = []
    for scale in (1, 1, 5):
        model.compile("sgd", losses(scale))
        records.append(describe_run(model, batch))
    assert difference(records[0], records[1]) is None
    assert difference(records[0], records[2]).startswith("loss.value ")
