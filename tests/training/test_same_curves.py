"""The same seeds give the same loss curve on each backend."""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from keras_vit import data, training
from keras_vit.data.source import tf
from keras_vit.training.settings import loss, optimizer
from tests.tiny import build

STEPS = 50
# The result of `curve` on TensorFlow.
GOLDEN = Path(__file__).with_name("same_curves.json")


def digits():
    """The first 400 of scikit-learn's digits, as a source of PNG files."""
    images, labels = load_digits(return_X_y=True)
    images = (images[:400].reshape(-1, 8, 8, 1) * (255 / 16)).astype("uint8")
    records = {"name": [str(i) for i in range(400)], "label": labels[:400].astype("int32")}
    records["image"] = [tf.io.encode_png(image).numpy() for image in images]
    records = tf.data.Dataset.from_tensor_slices(records)
    return data.Source(records, 400, False, "int", tuple("0123456789"), 10)


def curve(recipe):
    """The loss of each of the first steps, on weights that NumPy has drawn."""
    model = build(in_channels=1, num_classes=10, hidden_dim=48, num_heads=4, mlp_dim=96)
    rng = np.random.default_rng(0)
    for weight in model.weights:
        if not weight.path.endswith(("gamma", "bias", "beta")):
            weight.assign(rng.normal(0, 0.1, weight.shape))
    model.compile(optimizer(recipe, model, STEPS, 5), loss(recipe, one_hot=True))
    policy = data.Policy(mixup=0.2, label_smoothing=0.1)
    options = {"image_size": 16, "channels": 1, "batch_size": 32, "crop": "pad", "augment": policy, "seed": 3}
    batches = data.pipeline(digits(), repeat=True, num_batches=STEPS, **options)
    losses = []
    for images, labels in batches.as_numpy_iterator():
        model.reset_metrics()
        losses.append(float(model.train_on_batch(images, labels)))
    return losses


@pytest.mark.every_backend
def test_loss_curve_equals_the_golden_curve():
    losses = curve(training.RECIPES["deit_tiny"].replace({"learning_rate": 3e-3, "clip": 1.0}))
    assert len(losses) == STEPS and np.mean(losses[-10:]) < 0.95 * np.mean(losses[:10])
    np.testing.assert_allclose(losses, json.loads(GOLDEN.read_text()), rtol=1e-3)
