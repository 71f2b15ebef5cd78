import keras
import numpy as np
import pytest
import scipy.special

import keras_vit
from keras_vit.evaluation import ensemble, predict
from tests.errors import refuses
from tests.evaluation.arrays import forms
from tests.tiny import build, randomize

RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(-1, 1, (5, 16, 16, 3)).astype("float32")
LARGE = RNG.uniform(-1, 1, (5, 20, 18, 3)).astype("float32")
HEADS = [({"task": "multi_label"}, scipy.special.expit), ({"num_classes": 1}, scipy.special.expit)]
HEADS += [({"num_classes": 1, "task": "regression"}, lambda x: x), ({"task": "regression"}, lambda x: x)]
HEADS += [({"classifier_activation": "softmax"}, lambda x: x)]
REFUSED = [
    ({"image_size": 8}, r"input shape, \(None, 16, 16, 3\). Received: \(None, 8, 8, 3\)"),
    ({"class_names": list("vwxyz")}, "class names.*'a'.*Received:.*'v'"),
    ({"task": "multi_label"}, "activation of predictions, softmax. Received: sigmoid"),
    ({"task": "regression"}, "activation of predictions, softmax. Received: None"),
    ({"include_preprocessing": True}, "include_preprocessing, False. Received: True"),
    ({"preprocessing": {"mean": 0.3}}, "preprocessing, .*Received: "),
]


def softmax(logits):
    return scipy.special.softmax(logits, axis=1)


def logits_of(model, images):
    return keras.ops.convert_to_numpy(model(np.ascontiguousarray(images)))


def test_predict_probabilities_of_each_form_of_data():
    model = randomize(build())
    expected = softmax(logits_of(model, IMAGES))
    weighted = (IMAGES, np.zeros(5), np.ones(5))
    for data in (*forms(IMAGES), *forms(weighted), (IMAGES, [0, 1, 2, 3, 4]), [IMAGES[:3], IMAGES[3:]]):
        found = predict(model, data, batch_size=2, verbose=0)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("changes, apply", HEADS)
def test_flip_and_ensemble_average_predictions_of_head(changes, apply):
    model = randomize(build(**changes))
    expected = (apply(logits_of(model, IMAGES)) + apply(logits_of(model, IMAGES[:, :, ::-1]))) / 2
    np.testing.assert_allclose(predict(model, IMAGES, tta="flip", verbose=0), expected, rtol=1e-4, atol=1e-5)
    other = randomize(build(**changes), seed=1)
    joint = ensemble([model, other], weights=[3, 1])
    expected = 0.75 * apply(logits_of(model, IMAGES)) + 0.25 * apply(logits_of(other, IMAGES))
    np.testing.assert_allclose(predict(joint, IMAGES, verbose=0), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tta", ["five_crop", "ten_crop"])
def test_predict_averages_corner_and_center_crops(tta):
    model = randomize(build())
    crops = [LARGE[:, y : y + 16, x : x + 16] for y, x in ((0, 0), (0, 2), (4, 0), (4, 2), (2, 1))]
    crops += [crop[:, :, ::-1] for crop in crops] if tta == "ten_crop" else []
    expected = np.mean([softmax(logits_of(model, crop)) for crop in crops], axis=0)
    np.testing.assert_allclose(predict(model, LARGE, tta=tta, batch_size=3, verbose=0), expected, atol=1e-5)


def test_predict_refuses_invalid_data_tta_or_model():
    model = build()
    for data, tta, message in (
        (IMAGES, "mirror", "`tta`.*'flip'.*Received: 'mirror'"),
        (IMAGES, "five_crop", r"`data`.*larger than \(16, 16, 3\).*Received: \(16, 16, 3\)"),
        (LARGE, "flip", r"\(16, 16, 3\) for model.*Received: \(20, 18, 3\)"),
        (LARGE[:, :, :10], "ten_crop", r"`data`.*larger than.*Received: \(20, 10, 3\)"),
        (IMAGES[:0], None, "at least one image"),
        (7, None, "`data`.*Received: 'int'"),
        ([{"image": IMAGES, "label": IMAGES}], None, "dict with the keys .*'image', 'label'.*Make tuples"),
    ):
        refuses(message, predict, model, data, tta=tta, verbose=0)
    any_size = build(image_size=(None, None))
    refuses("`tta`.*any size.*Received: 'five_crop'", predict, any_size, LARGE, tta="five_crop", verbose=0)
    refuses("outputs features", predict, build(num_classes=0), IMAGES)
    model.compile("sgd", "mse")
    refuses("task='regression'", predict, model, IMAGES)


@pytest.mark.backends("tensorflow")
def test_predict_refuses_dataset_with_broken_image(tmp_path):
    for i in range(3):
        keras.utils.save_img(tmp_path / f"{i}.png", np.full((16, 16, 3), 90.0 * i), scale=False)
    model = randomize(build())
    table = {"path": [str(tmp_path / f"{i}.png") for i in range(3)]}
    options = {"label_column": None, "preprocessing": model, "batch_size": 2}
    data = keras_vit.data.from_dataframe(table, **options)
    assert all(predict(model, data, tta=tta, verbose=0).shape == (3, 5) for tta in (None, "flip"))
    (tmp_path / "1.png").write_text("no image")
    data = keras_vit.data.from_dataframe(table, **options)
    refuses(r"3 images.*Received: 2 images.*broken: .*1\.png", predict, model, data, verbose=0)
    data = keras_vit.data.from_dataframe(table, **{**options, "batch_size": 1})
    refuses(r"Received: 3 images.*broken: .*1\.png", predict, model, data, verbose=0)


def test_ensemble_of_arrays_is_weighted_mean():
    first, second = RNG.uniform(size=(2, 4, 3))
    np.testing.assert_allclose(ensemble([first, second]), (first + second) / 2, rtol=1e-6)
    found = ensemble([first.tolist(), keras.ops.convert_to_tensor(second)], weights=[0.2, 0.6])
    np.testing.assert_allclose(found, 0.25 * first + 0.75 * second, rtol=1e-6)
    for members, weights, message in (
        ([], None, "at least one"),
        ([first, second[:3]], None, r"one shape.*\(3, 3\), \(4, 3\)"),
        ([first], [0.0], "not all 0"),
        ([first, second], [1, -1], "at least 0"),
        ([first, second], [1], "2 numbers, one for each member. Received: 1"),
        ([first, build()], None, "only models or only predictions"),
    ):
        refuses(message, ensemble, members, weights)


def test_ensemble_of_frames_needs_same_index_and_columns():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([[0.2, 0.8], [0.6, 0.4]], index=["x", "y"], columns=["cat", "dog"])
    pandas.testing.assert_frame_equal(ensemble([frame, frame]), frame.astype("float32"))
    refuses(r"same index, \['x', 'y'\].*\['y', 'x'\]", ensemble, [frame, frame[::-1]])
    refuses("same columns.*'dog', 'cat'", ensemble, [frame, frame[["dog", "cat"]]])
    refuses("same index", ensemble, [frame, frame.to_numpy()])


def test_ensemble_of_models_can_be_saved(tmp_path):
    names = list("abcde")
    changes = ({}, {"preprocessing": {"mean": 0.3}, "pooling": "gap"}, {"classifier_activation": "softmax"})
    models = [build(class_names=names, include_preprocessing=True, **options) for options in changes]
    members = [randomize(model, seed=seed) for seed, model in enumerate(models, 1)]
    images = 127.5 + 127.5 * IMAGES
    expected = np.mean([predict(member, images, verbose=0) for member in members], axis=0)
    ensemble(members).save(tmp_path / "ensemble.keras")
    loaded = keras.saving.load_model(tmp_path / "ensemble.keras")
    np.testing.assert_allclose(predict(loaded, images, verbose=0), expected, atol=1e-5)
    (best, *_), *_ = keras_vit.decode_predictions(loaded.predict(images, verbose=0), loaded, top=1)
    assert best[1] == names[expected[0].argmax()]
    alone = members[0]
    np.testing.assert_allclose(predict(ensemble([alone]), images, verbose=0), predict(alone, images, verbose=0))
    assert [member.name for member in members] == [alone.name] * 3, "the members keep their names"


@pytest.mark.parametrize("changes, message", REFUSED, ids=str)
def test_ensemble_refuses_models_of_other_images_or_classes(changes, message):
    refuses(message, ensemble, [build(class_names=list("abcde")), build(**{"class_names": list("abcde"), **changes})])
