"""Fits a pretrained Vision Transformer to images of your own: a folder of class folders, or a TFDS dataset.

`--train head` (the default) freezes the backbone: its features are computed once, a linear head is fitted on them and
put into the model. `--train all` trains all weights. What is saved takes raw images of 0..255, resized to --image-size.

Paper:    arXiv 2010.11929, section 4.1 and appendix B.1.1 (fine-tuning: SGD, momentum 0.9, cosine decay, no weight
          decay, gradients clipped to norm 1), appendix D.3 (the other sizes); section 3.2 (higher resolution).
Command:  python examples/finetune.py --weights ViT-B_16-224.npz --dataset flowers17 --train-per-class 40 --seed 0
Hardware: 0.13 hours of one CPU core, on JAX.
Expected: test accuracy 0.9966 on Oxford 17 Flowers: 0.9956, 0.9971 and 0.9971 with the seeds 0, 1 and 2.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keras
import numpy as np

import keras_vit
from keras_vit.inspection import plot_history, plot_predictions

try:
    import tensorflow as tf
except ImportError as error:
    raise SystemExit('The images go through tf.data on every backend: pip install "keras-vit[data]"') from error

# The head's row was chosen by cross-validation on training images, the other one after the paper's appendix B.1.1.
DEFAULTS = {
    "head": {"epochs": 30, "batch_size": 32, "learning_rate": 1e-3},
    "all": {"epochs": 5, "batch_size": 16, "learning_rate": 3e-3},
}


def positive_int(text):
    """Reads an option that counts something."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, received {text!r}")
    return int(text)


def parse_arguments(argv=None):
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description="Fits a pretrained Vision Transformer to a folder of class folders or a TFDS dataset, saves it, "
        "reloads it and tests it. Nothing is downloaded. The backend is Keras' own choice: KERAS_BACKEND=tensorflow, "
        "jax (the fastest for a frozen backbone on a CPU) or torch. Defaults are in brackets.",
    )
    add = parser.add_argument
    add("--weights", type=Path, required=True, help="an official .npz checkpoint")
    add("--dataset", required=True, help="a folder with one folder of images a class, or the name of a TFDS dataset")
    add("--data-dir", help="where TFDS datasets are prepared [TFDS' own default]")
    add("--out", type=Path, default=Path("runs/finetune"), help="folder of what is written [%(default)s]")
    add("--variant", default="B/16", help="the checkpoint's variant [%(default)s]")
    add("--image-size", type=positive_int, default=224, help="side in pixels, any that holds a patch [%(default)s]")
    add("--train", choices=("head", "all"), default="head", help="head freezes the backbone [%(default)s]")
    add("--train-per-class", type=positive_int, metavar="N", help="train on N random images a class, test on the rest")
    add("--test-fraction", type=float, default=0.2, help="share of each class to test on otherwise [%(default)s]")
    add("--seed", type=int, default=0, help="of the split, the order and the augmentation [%(default)s]")
    for name, kind, what in (
        ("epochs", positive_int, "passes over the training images"),
        ("batch_size", positive_int, "images a step"),
        ("learning_rate", float, "the highest, after the warmup"),
    ):
        default = ", ".join(f"{defaults[name]} for --train {train}" for train, defaults in DEFAULTS.items())
        add(f"--{name.replace('_', '-')}", type=kind, default=argparse.SUPPRESS, help=f"{what} [{default}]")
    args = parser.parse_args(argv)
    return argparse.Namespace(**{**DEFAULTS[args.train], **vars(args)})


def read_folder(folder):
    """Returns (encoded images, labels, class names, index of the first test image) of a folder.

    Each file is decoded once, so that a broken one is named before anything is built. A folder has no test images of
    its own: the index is None.
    """
    class_names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != ".")
    files, labels = [], []
    for label, name in enumerate(class_names):
        found = sorted(str(file) for file in (folder / name).iterdir() if file.is_file() and file.name[0] != ".")
        if not found:
            raise SystemExit(f"Expected images in each class folder. There is none in {folder / name}")
        files += found
        labels += [label] * len(found)

    def fault(file):
        try:
            decode(tf.io.read_file(file))
        except tf.errors.OpError as error:
            return f"Cannot decode {file}: {error.message}"

    with ThreadPoolExecutor() as pool:
        faults = [message for message in pool.map(fault, files) if message]
    if faults:
        raise SystemExit("\n".join(faults[:10] + [f"... and {len(faults) - 10} more"] * (len(faults) > 10)))
    images = tf.data.Dataset.from_tensor_slices(np.array(files, str)).map(tf.io.read_file)
    return images, np.array(labels, int), class_names, None


def read_tfds(name, data_dir):
    """Returns the same four of a TFDS dataset that has been prepared on this machine; its test split comes last."""
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise SystemExit('TFDS datasets need tensorflow-datasets: pip install "keras-vit[data]"') from error
    try:
        splits, info = tfds.load(
            name,
            data_dir=data_dir,
            decoders={"image": tfds.decode.SkipDecoding()},
            download=False,
            try_gcs=False,
            with_info=True,
        )
        train, class_names = splits["train"], info.features["label"].names
    except (AssertionError, AttributeError, KeyError, OSError, ValueError) as error:
        raise SystemExit(
            f"Cannot read --dataset {name}: there is no such folder. As a TFDS dataset it must be prepared in "
            f"{data_dir or 'the default folder of TFDS'} (--data-dir), since none is downloaded here, and have a train "
            f"split of images with labels. TFDS says: {error}"
        ) from error
    images = train.concatenate(splits["test"]) if "test" in splits else train
    labels = np.array([int(row["label"]) for row in images.as_numpy_iterator()])
    return images.map(lambda row: row["image"]), labels, class_names, len(train) if "test" in splits else None


def split(labels, class_names, first_test, args):
    """Returns two arrays of bools: which images are for training, and which for testing. At random, class by class."""
    rng = np.random.default_rng(args.seed)
    training = np.zeros(len(labels), bool)
    for label, name in enumerate(class_names):
        members = rng.permutation(np.flatnonzero(labels[:first_test] == label))
        spare = max(1, round(len(members) * args.test_fraction)) if first_test is None else 0
        count = len(members) - spare if args.train_per_class is None else args.train_per_class
        if not 0 < count <= len(members) - (first_test is None):
            raise SystemExit(
                f"Expected each class to have images for training and for testing. Class {name!r} has {len(members)}, "
                f"of which {max(count, 0)} would be for training."
            )
        training[members[:count]] = True
    testing = ~training if first_test is None else np.arange(len(labels)) >= first_test
    return training, testing


def decode(encoded):
    """Decodes a JPEG, PNG, BMP or GIF into RGB of 0..255."""
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    image.set_shape((None, None, 3))
    return image


def resize(image, size):
    """Resizes as the official evaluation does: bilinear, without antialiasing, whatever the aspect ratio."""
    return tf.image.resize(image, (size, size))


def augment(image, size):
    """A random crop of 7/8 of each side, flipped half the time."""
    image = tf.image.random_crop(resize(image, size * 8 // 7), (size, size, 3))
    return tf.image.random_flip_left_right(image)


def pipeline(images, labels, chosen, args, augmented=False):
    """Returns batches of (images of 0..255, labels) of the chosen images; in random order, too, where augmented."""
    indices = tf.constant(chosen)
    data = tf.data.Dataset.zip(images, tf.data.Dataset.from_tensor_slices(labels)).enumerate()
    data = data.filter(lambda i, _: indices[i]).map(lambda _, pair: pair)
    data = data.apply(tf.data.experimental.assert_cardinality(int(chosen.sum())))
    if augmented:
        data = data.shuffle(int(chosen.sum()), seed=args.seed)
    transform = augment if augmented else resize
    data = data.map(lambda image, label: (transform(decode(image), args.image_size), label), tf.data.AUTOTUNE)
    return data.batch(args.batch_size).prefetch(tf.data.AUTOTUNE)


def compile_model(model, optimizer):
    """Compiles for integer labels and logits."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])


def cosine(args, num_images):
    """A cosine decay from the learning rate to 0, after a warmup over a tenth of the steps."""
    steps = args.epochs * -(-num_images // args.batch_size)
    warmup = steps // 10
    return keras.optimizers.schedules.CosineDecay(
        0.0 if warmup else args.learning_rate, steps - warmup, warmup_target=args.learning_rate, warmup_steps=warmup
    )


def fit_head(model, train, test, labels, args):
    """Fits the head alone, on features that the backbone computes once. Returns the history."""
    for layer in model.layers:
        layer.trainable = layer.name == "head"
    backbone = keras.Model(model.input, model.get_layer("head").input)
    (train_labels, test_labels), features = labels, [backbone.predict(data) for data in (train, test)]
    # Standardised features need no tuning of the learning rate; the head takes the two constants in afterwards.
    mean, std = features[0].mean(axis=0), features[0].std(axis=0) + 1e-6
    train, test = (
        tf.data.Dataset.from_tensor_slices(((x - mean) / std, y))
        for x, y in zip(features, (train_labels, test_labels), strict=True)
    )
    head = keras.Sequential(
        [keras.Input(mean.shape), keras.layers.Dense(model.output.shape[-1], kernel_initializer="zeros")]
    )
    compile_model(head, keras.optimizers.Adam(cosine(args, len(train))))
    train = train.shuffle(len(train), seed=args.seed).batch(args.batch_size)
    history = head.fit(train, validation_data=test.batch(args.batch_size), epochs=args.epochs)
    kernel, bias = head.get_weights()
    kernel /= std[:, None]
    model.get_layer("head").set_weights([kernel, bias - mean @ kernel])
    compile_model(model, "sgd")
    return history


def main(argv=None):
    """Reads, splits, fits, saves, reloads and tests."""
    args = parse_arguments(argv)
    if not args.weights.is_file():
        raise SystemExit(f"Expected a checkpoint. There is no file at --weights {args.weights}")
    folder = Path(args.dataset)
    images, labels, class_names, first_test = (
        read_folder(folder) if folder.is_dir() else read_tfds(args.dataset, args.data_dir)
    )
    if len(class_names) < 2:
        raise SystemExit(f"Expected two classes or more in --dataset {args.dataset}. Received: {class_names}")
    training, testing = split(labels, class_names, first_test, args)
    args.out.mkdir(parents=True, exist_ok=True)
    print(f"{training.sum()} images of {len(class_names)} classes to train on, {testing.sum()} to test on")

    keras.utils.set_random_seed(args.seed)
    try:
        model = keras_vit.ViT(
            args.variant,
            image_size=args.image_size,
            num_classes=len(class_names),
            weights=args.weights,
            include_preprocessing=True,
        )
    except ValueError as error:
        raise SystemExit(str(error)) from error
    test = pipeline(images, labels, testing, args)
    # The test images also give the validation curve. Nothing is chosen by it: the last epoch is what is saved.
    if args.train == "head":
        train = pipeline(images, labels, training, args)
        history = fit_head(model, train, test, (labels[training], labels[testing]), args)
    else:
        train = pipeline(images, labels, training, args, augmented=True)
        optimizer = keras.optimizers.SGD(cosine(args, training.sum()), momentum=0.9, global_clipnorm=1.0)
        compile_model(model, optimizer)
        history = model.fit(train, validation_data=test, epochs=args.epochs)
    accuracy = history.history["val_accuracy"][-1]

    model.save(args.out / "model.keras")
    (args.out / "classes.txt").write_text("\n".join(class_names) + "\n", encoding="utf-8")
    plot_history(history, args.out / "history.png")
    reloaded = keras.models.load_model(args.out / "model.keras")
    _, accuracy_reloaded = reloaded.evaluate(test)
    # Features in one batch or another differ in the last bit, so an image on the edge may change sides.
    if abs(accuracy_reloaded - accuracy) > 1.5 / testing.sum():
        raise SystemExit(f"The saved model has test accuracy {accuracy_reloaded:.4f}, the trained one {accuracy:.4f}.")

    shown = np.zeros(len(labels), bool)
    shown[np.random.default_rng(args.seed).permutation(np.flatnonzero(testing))[:24]] = True
    pictures, truths = next(iter(pipeline(images, labels, shown, args).unbatch().batch(24)))
    probabilities = keras.ops.softmax(reloaded.predict(pictures.numpy(), verbose=0))
    plot_predictions(pictures.numpy(), truths.numpy(), probabilities, class_names, args.out / "predictions.png")
    print(f"Wrote model.keras, classes.txt, history.png and predictions.png to {args.out}")
    print(f"test accuracy {accuracy_reloaded:.4f}")


if __name__ == "__main__":
    main()
