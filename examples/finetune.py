"""Fits a linear head to a pretrained Vision Transformer on a folder of images or a TFDS dataset.

The backbone is frozen, so the features of all images are computed only once. The head is then trained on these
features. The saved model takes raw images in [0, 255] of the size --image-size. To train all weights, run
`keras-vit train --recipe finetune_flowers17 --data flowers17`. To train with LoRA, use the recipe `lora_flowers17`.

Paper:    arXiv 2010.11929, section 4.1 (linear evaluation), section 3.2 (higher resolution).
Command:  python examples/finetune.py --weights ViT-B_16-224.npz --dataset flowers17 --holdout 0.5
Hardware: 0.07 hours on 2 CPU cores with TensorFlow.
Expected: test accuracy 0.9971 on Oxford 17 Flowers.
"""

import argparse
from pathlib import Path

import keras
import numpy as np

import keras_vit
from keras_vit.inspection import plot_history, plot_predictions


def positive_int(text):
    """Parses an integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, received {text!r}")
    return int(text)


def parse_arguments(argv=None):
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description="Fits a linear head to the features of a pretrained Vision Transformer, saves the model, reloads "
        "it and tests it. Weights are downloaded only if --weights is a name instead of a path. Data sets are not "
        "downloaded. The environment variable KERAS_BACKEND selects the backend.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--weights", required=True, help="a checkpoint, such as an official .npz file or hf://owner/name")
    add("--dataset", required=True, help="a folder with one folder of images per class, or the name of a TFDS dataset")
    add("--data-dir", help="the folder of prepared TFDS datasets")
    add("--out", type=Path, default=Path("runs/finetune"), help="the folder for all written files")
    add("--variant", default="B/16", help="the checkpoint's variant")
    add("--image-size", type=positive_int, default=224, help="the image size in pixels, at least the patch size")
    add("--holdout", type=float, default=0.2, help="fraction of each class to test on, if a dataset has no test images")
    add("--seed", type=int, default=0, help="the random seed of the split and of the order of the images")
    add("--epochs", type=positive_int, default=30, help="the number of epochs")
    add("--batch-size", type=positive_int, default=32, help="the number of images per step")
    add("--learning-rate", type=float, default=1e-3, help="the initial learning rate, which falls to 0")
    return parser.parse_args(argv)


def features_of(backbone, dataset):
    """Returns the features and the labels of a dataset."""
    batches = []
    progress = keras.utils.Progbar(len(dataset), unit_name="batch")
    for images, labels in dataset:
        batches.append((backbone.predict_on_batch(images.numpy()), labels.numpy()))
        progress.add(1)
    return tuple(np.concatenate(column) for column in zip(*batches, strict=True))


def fit_head(model, train, test, args):
    """Trains the head on the backbone's features; returns the history."""
    backbone = keras.Model(model.input, model.get_layer("head").input)
    train, test = features_of(backbone, train), features_of(backbone, test)
    # Standardise the features, so that one learning rate suits all models. The mean and std become part of the head.
    mean, std = train[0].mean(axis=0), train[0].std(axis=0) + 1e-6
    head = keras.Sequential(
        [keras.Input(mean.shape), keras.layers.Dense(model.output.shape[-1], kernel_initializer="zeros")]
    )
    steps = args.epochs * -(-len(train[0]) // args.batch_size)
    compile_model(head, keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(args.learning_rate, steps)))
    history = head.fit(
        (train[0] - mean) / std,
        train[1],
        args.batch_size,
        epochs=args.epochs,
        # The test images only monitor the training. The weights of the last epoch are always saved.
        validation_data=((test[0] - mean) / std, test[1]),
        verbose=2,
    )
    kernel, bias = head.get_weights()
    kernel /= std[:, None]
    model.get_layer("head").set_weights([kernel, bias - mean @ kernel])
    return history


def compile_model(model, optimizer):
    """Compiles a model for integer labels and logits."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])


def main(argv=None):
    """Trains a head, saves the model, reloads it and tests it."""
    args = parse_arguments(argv)
    keras.utils.set_random_seed(args.seed)
    try:
        make = keras_vit.data.splits(args.dataset, data_dir=args.data_dir, holdout=args.holdout)
        options = {"image_size": args.image_size, "batch_size": args.batch_size, "training": False, "normalize": False}
        train = make("train", seed=args.seed, **options)
        model = keras_vit.ViT(
            args.variant,
            image_size=args.image_size,
            num_classes=train.num_classes,
            class_names=train.class_names or None,
            weights=args.weights,
            include_preprocessing=True,
        )
        # Resize the images as in the preprocessing of the checkpoint.
        train, test = (make(part, seed=args.seed, preprocessing=model, **options) for part in ("train", "test"))
    except (ValueError, OSError, ImportError) as error:
        raise SystemExit(str(error)) from error
    if train.class_names != test.class_names:
        raise SystemExit(f"Expected the same classes to train and to test on. Received: {test.class_names}")
    print(f"{train.num_images} images of {train.num_classes} classes to train on, {test.num_images} to test on")
    args.out.mkdir(parents=True, exist_ok=True)
    history = fit_head(model, train, test, args)
    accuracy = history.history["val_accuracy"][-1]
    compile_model(model, "sgd")
    model.save(args.out / "model.keras")
    names = train.class_names or [str(i) for i in range(train.num_classes)]
    (args.out / "classes.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    plot_history(history, args.out / "history.png")

    reloaded = keras.models.load_model(args.out / "model.keras")
    _, accuracy_reloaded = reloaded.evaluate(test)
    # Rounding depends on the batch, so the class of an image with two nearly equal outputs may change.
    if abs(accuracy_reloaded - accuracy) > 1.5 / test.num_images:
        raise SystemExit(f"The saved model has test accuracy {accuracy_reloaded:.4f}, the fitted one {accuracy:.4f}.")
    pictures, truths = next(iter(test.unbatch().shuffle(1000, seed=args.seed).batch(24)))
    probabilities = keras.ops.softmax(reloaded.predict(pictures.numpy(), verbose=0))
    plot_predictions(pictures.numpy(), truths.numpy(), probabilities, names, args.out / "predictions.png")
    print(f"Wrote model.keras, classes.txt, history.png and predictions.png to {args.out}")
    print(f"test accuracy {accuracy_reloaded:.4f}")


if __name__ == "__main__":
    main()
