"""Data, small models and training that the studies share.

The images are CIFAR-10's, 32 x 32 pixels, to train or pre-train on, and Oxford 17 Flowers', reduced to the same size,
to transfer to: 40 images of each class to train on, and 40 to test.
"""

import functools
import tempfile
from argparse import Namespace
from pathlib import Path

import keras
import numpy as np
from axial_block import AxialBlock
from cifar10 import Batches, read

import keras_vit
from keras_vit.evaluation import extract_features, few_shot_accuracy
from keras_vit.training import AdamW, WarmupDecay

SHOTS = 10
# The scores of `transferred`, and their titles in a figure.
TITLES = {"upstream": "CIFAR-10, pre-trained on", "transfer": "Flowers, fine-tuned", "few_shot": "Flowers, 10 shots"}


@functools.cache
def cifar10(folder):
    """Returns {"train", "test": (images, labels)}; made-up images without a folder."""
    return _synthetic(10, 400, 100) if folder is None else read(Path(folder) / "cifar10.npz")


@functools.cache
def flowers(folder, size=32):
    """Returns {"train", "test": (images, labels)} of Oxford 17 Flowers, uint8 (680, size, size, 3) each."""
    if folder is None:
        return _synthetic(17, 17 * SHOTS, 34, size)
    parts = {"train": ([], []), "test": ([], [])}
    for label, path in enumerate(sorted(path for path in (Path(folder) / "flowers17").iterdir() if path.is_dir())):
        for i, file in enumerate(sorted(path.iterdir())):
            images, labels = parts["train" if i % 2 else "test"]
            options = {"target_size": (size, size), "interpolation": "lanczos", "keep_aspect_ratio": True}
            images.append(np.asarray(keras.utils.load_img(file, **options), "uint8"))
            labels.append(label)
    return {name: (np.stack(images), np.array(labels)) for name, (images, labels) in parts.items()}


def _synthetic(classes, train, test, size=32):
    """Images of one noisy pattern per class, to try a study without data."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 200, (classes, size, size, 3))
    parts = {}
    for name, count in (("train", train), ("test", test)):
        labels = np.arange(count) % classes
        parts[name] = (patterns[labels] + rng.integers(0, 56, (count, size, size, 3))).astype("uint8"), labels
    return parts


def vit(num_classes=10, image_size=32, **sizes):
    """Builds a small ViT for raw images."""
    sizes = {"patch_size": 4, "hidden_dim": 48, "num_layers": 3, "num_heads": 4, **sizes}
    sizes.setdefault("mlp_dim", 2 * sizes["hidden_dim"])
    return keras_vit.ViT("Ti/16", image_size=image_size, num_classes=num_classes, include_preprocessing=True, **sizes)


def axial_vit(num_classes=10, image_size=32, *, patch_size=4, hidden_dim=48, num_layers=3):
    """Builds a small ViT of axial blocks, whose patches are averaged."""
    images = keras.Input((image_size, image_size, 3))
    x = keras_vit.layers.ImageNormalization(apply=True)(images)
    tokens = keras_vit.layers.PatchEmbedding(hidden_dim, patch_size)(x)
    tokens = keras_vit.layers.PositionEmbedding((image_size // patch_size,) * 2)(tokens)
    x = keras_vit.layers.PatchMap(patch_size)(tokens, x)
    for _ in range(num_layers):
        x = AxialBlock(num_heads=4, mlp_dim=2 * hidden_dim)(x)
    x = keras.layers.LayerNormalization(epsilon=1e-6)(x)
    x = keras.layers.GlobalAveragePooling2D(data_format="channels_last")(x)
    return keras.Model(images, keras.layers.Dense(num_classes, kernel_initializer="zeros", name="head")(x))


def hybrid(num_classes=10, image_size=32, **sizes):
    """Builds a small hybrid: one stage of residual units, then 8 x 8 tokens."""
    sizes = {"patch_size": 1, "num_heads": 4, "mlp_dim": 2 * sizes["hidden_dim"], **sizes}
    return keras_vit.ViT(
        "R+Ti/16",
        image_size=image_size,
        num_classes=num_classes,
        include_preprocessing=True,
        stages=(1,),
        width_factor=0.5,
        **sizes,
    )


def bit(num_classes=10, image_size=32, *, stages=(1, 1, 1)):
    """Builds a small BiT."""
    return keras_vit.BiT(
        "R50x1",
        image_size=image_size,
        num_classes=num_classes,
        include_preprocessing=True,
        stages=stages,
        width_factor=0.5,
    )


def fit(model, images, labels, *, updates, seed, optimizer=None, learning_rate=1e-3, batch_size=100, callbacks=()):
    """Trains a model on flipped, shifted and partly erased images for a number of updates.

    AdamW, with a linear warm-up over a twentieth of the updates and a cosine decay, unless an optimizer is given.
    """
    settings = Namespace(seed=seed, batch_size=min(batch_size, len(images)), erase=8, mixup=0.0)
    batches = Batches(images, labels, settings, model.output_shape[-1])
    optimizer = optimizer or AdamW(schedule(learning_rate, updates), weight_decay=0.05)
    model.compile(optimizer, keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1))
    model.fit(Updates(batches, updates, model.input_shape[1]), verbose=0, shuffle=False, callbacks=list(callbacks))
    return model


def enlarged(images, size):
    """Returns images, float32, with sides of `size` pixels, bilinearly."""
    images = images.astype("float32")
    return images if images.shape[1] == size else np.asarray(keras.ops.image.resize(images, (size, size)))


def multiply_adds(model):
    """Returns the multiply-adds of one image."""
    # `profile` counts the package's layers only.
    axial_blocks = [layer for layer in model.layers if isinstance(layer, AxialBlock)]
    return keras_vit.profile(model).multiply_adds + sum(block.multiply_adds() for block in axial_blocks)


def schedule(learning_rate, updates):
    return WarmupDecay(learning_rate, total_steps=updates, warmup_steps=max(1, updates // 20))


class Updates(keras.utils.PyDataset):
    """A number of batches, from as many epochs of `batches` as they need, of images of a size."""

    def __init__(self, batches, updates, size):
        super().__init__()
        self.batches, self.updates, self.size = batches, updates, size

    def __len__(self):
        return self.updates

    def __getitem__(self, index):
        epoch, place = divmod(index, len(self.batches))
        while self.batches.epoch < epoch:
            self.batches.on_epoch_end()
        images, labels = self.batches[place]
        return enlarged(images, self.size), labels


def accuracy(model, images, labels):
    """Returns the share of images whose highest logit is that of their class."""
    parts = np.split(images, range(500, len(images), 500))
    logits = [model.predict_on_batch(enlarged(part, model.input_shape[1])) for part in parts]
    return float((np.concatenate(logits).argmax(axis=1) == labels).mean())


def few_shot(model, data):
    """Returns the accuracy of a linear classifier on the features of 10 images per class."""
    size = model.input_shape[1]
    features = [
        extract_features(model, (enlarged(images, size), labels), batch_size=500, verbose=0)
        for images, labels in (data["train"], data["test"])
    ]
    return few_shot_accuracy(None, *features, shots=SHOTS, seeds=(0, 1, 2), verbose=0)["accuracy"]


def with_new_head(model, num_classes, **changes):
    """Returns a pretrained model with a new head, and maybe for another image size, as a checkpoint is fine-tuned."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.npz"
        keras_vit.save_weights(model, path)
        return keras_vit.from_pretrained(path, num_classes=num_classes, include_preprocessing=True, **changes)


def fine_tuned(model, data, *, updates, seed, learning_rate=1e-3, **changes):
    """Fine-tunes a pretrained model with a new head; returns the accuracy on the test images."""
    (images, labels), test = data["train"], data["test"]
    model = with_new_head(model, int(labels.max()) + 1, **changes)
    fit(model, images, labels, updates=updates, seed=seed, learning_rate=learning_rate, batch_size=68)
    return accuracy(model, *test)


def transferred(model, data, *, updates, seed):
    """Returns the scores of a model pre-trained on CIFAR-10: there, and on Flowers few-shot and fine-tuned."""
    return {
        "upstream": accuracy(model, *cifar10(data)["test"]),
        "few_shot": few_shot(model, flowers(data)),
        "transfer": fine_tuned(model, flowers(data), updates=updates, seed=seed),
    }
