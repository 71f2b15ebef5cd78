import keras
import numpy as np
import pytest

from keras_vit.training import SAM
from tests.errors import refuses
from tests.tiny import build

IMAGES, WRONG, LABELS = np.zeros((4, 16, 16, 3), "float32"), np.zeros((4, 18, 18, 3), "float32"), np.zeros(4, "int32")
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Batches(keras.utils.PyDataset):
    """Batches whose second one has images of another size. Only `reads` batches can be read."""

    def __init__(self, reads=9):
        super().__init__()
        self.reads = list(range(reads))

    def __len__(self):
        return 2

    def __getitem__(self, index):
        self.reads.pop()
        return (IMAGES, WRONG)[index], LABELS


@pytest.mark.every_backend
@pytest.mark.parametrize("wrapper", [lambda model: model, SAM])
def test_wrong_image_size_leaves_the_model_usable(wrapper):
    model = wrapper(build(num_layers=1))
    model.compile("adam", LOSS, metrics=["accuracy"])
    # Keras reads a batch before the first step.
    with pytest.raises(Exception, match="pop from empty list"):
        model.fit(Batches(1), verbose=0)
    model.fit(IMAGES, LABELS, verbose=0)
    expected, sized = model.predict(IMAGES, verbose=0), r"image_size=\(18, 18\). Received: \(18, 18, 3\)"
    for images in (WRONG, np.zeros((4, 16, 16, 1), "float32")):
        refuses(r"Expected images of shape \(16, 16, 3\) for model", model.predict, images, verbose=0)
    refuses(r"Received: \(16, 16, 3\). Add the axis of the batch", model.predict, IMAGES[0], verbose=0)
    refuses(sized, model.evaluate, WRONG, LABELS, verbose=0)
    refuses(sized, model.fit, WRONG, LABELS, verbose=0)
    refuses(sized, model.fit, IMAGES, LABELS, validation_data=(WRONG, LABELS), verbose=0)
    for function in (model.predict, model.evaluate, model.fit):
        refuses("18|reshape", function, Batches(), error=Exception, verbose=0)
        if function != model.fit:
            np.testing.assert_allclose(model.predict(IMAGES, verbose=0), expected, rtol=1e-5, atol=1e-6)
    assert np.isfinite(model.evaluate(IMAGES, LABELS, verbose=0)).all()


def test_dataset_of_wrong_images_is_refused_by_its_shape():
    import tensorflow as tf

    model = build(num_layers=1)
    model.compile("sgd", LOSS)
    data = tf.data.Dataset.from_tensor_slices((WRONG, LABELS))
    refuses(r"batches of images.*Received: \(18, 18, 3\). Add the axis of the batch", model.fit, data, verbose=0)
    refuses(r"Received: \(18, 18, 3\)", model.fit, data.batch(2), verbose=0)
    refuses(r"Received: \(18, 18, 3\)", model.fit, IMAGES, LABELS, validation_data=data.batch(2), verbose=0)


def test_dataset_whose_labels_mean_other_classes_is_refused():
    class Named(keras.utils.PyDataset):
        def __init__(self, *class_names):
            super().__init__()
            self.class_names = class_names

        def __len__(self):
            return 1

        def __getitem__(self, index):
            return IMAGES, LABELS

    model, unnamed = (build(num_layers=1, num_classes=3, class_names=names) for names in (["ant", "bee", "cat"], None))
    for each in (model, unnamed):
        each.compile("sgd", LOSS)
    for data in (Named("bee", "ant", "cat"), Named("ant", "cat"), Named("ant", "bee", "cat", "dog")):
        message = r"classes of model .* in the same order, \['ant', 'bee', 'cat'\] ... Received: "
        refuses(message, model.fit, data, verbose=0)
        refuses(message, model.fit, IMAGES, LABELS, validation_data=data, verbose=0)
        refuses(message, model.evaluate, data, verbose=0)
        assert unnamed.evaluate(data, verbose=0) > 0
    for names in (["ant", "bee", "cat"], ["ant", "bee"], ["1", "2", "3"], [], np.array(["ant", "bee"])):
        data = Named()
        data.class_names = names
        assert model.evaluate(data, verbose=0) > 0
