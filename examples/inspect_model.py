"""Shows what a Vision Transformer has learned, as in figures 6 and 7 of the paper.

By default, the script trains a small model on scikit-learn's handwritten digits, resized to 32 x 32. Then it inspects
the model on four digits that were not used for training. Use --weights and --images to inspect another model and other
images. The script writes `filters.png`, `positions.png`, `distance.png`, `rollout.png` and `report.html`.

Paper:    arXiv 2010.11929, section 4.5, figures 6 and 7, appendices D.7 and D.8.
Command:  python examples/inspect_model.py
Hardware: 2 CPU cores, about a minute.
Expected: on the digits, 95% training accuracy after 10 epochs, and attention on the strokes. In a model this small, the
          attention distance does not grow with depth. At image size 224, the mean attention distance of the published
          ViT-B/16 is 82 pixels in the first block, 55 in the second and 118 in the last.
"""

import argparse
from pathlib import Path

import keras
import numpy as np

import keras_vit
from keras_vit import inspection
from keras_vit.prediction.classify import read_image


def positive_int(text):
    """Parses an integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, received {text!r}")
    return int(text)


def parse_arguments(argv=None):
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description="Draws what a Vision Transformer has learned. Weights are downloaded only if --weights is a name "
        "instead of a path. The environment variable KERAS_BACKEND selects the backend.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--weights",
        help="a checkpoint, .keras file or folder of a run to inspect; by default a model is trained on digits",
    )
    add("--images", nargs="+", help="image files; required with --weights")
    add("--out", type=Path, default=Path("runs/inspect"), help="folder for the figures and report.html")
    add("--epochs", type=positive_int, default=10, help="the number of epochs of training on digits")
    add("--batch-size", type=positive_int, default=64, help="the number of images per step")
    add("--learning-rate", type=float, default=1e-3, help="the learning rate of AdamW")
    add("--seed", type=int, default=0, help="the random seed of the weights and of the order of the images")
    args = parser.parse_args(argv)
    if bool(args.weights) != bool(args.images):
        parser.error("expected both --weights and --images, or neither")
    return args


def train(args):
    """Trains a small ViT on digits; returns the model and the paths of four images that were not used for training."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = keras.ops.image.resize(
        digits.images[..., None].astype("float32") * (255 / 16), (32, 32), data_format="channels_last"
    )
    images = np.clip(keras.ops.convert_to_numpy(images), 0, 255)
    model = keras_vit.ViT(
        "Ti/16",
        image_size=32,
        patch_size=4,
        in_channels=1,
        num_classes=10,
        hidden_dim=64,
        num_layers=4,
        num_heads=4,
        mlp_dim=128,
        include_preprocessing=True,
    )
    model.compile(
        keras.optimizers.AdamW(args.learning_rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(images[4:], digits.target[4:], batch_size=args.batch_size, epochs=args.epochs)
    paths = [args.out / f"digit_{label}.png" for label in digits.target[:4]]
    for path, image in zip(paths, images[:4], strict=True):
        keras.utils.save_img(path, image, data_format="channels_last", scale=False)
    return model, paths


def main(argv=None):
    """Trains or loads a model and writes the figures."""
    args = parse_arguments(argv)
    keras.utils.set_random_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    if not args.weights:
        model, paths = train(args)
    else:
        model, paths = keras_vit.from_pretrained(args.weights), args.images
    raw = np.stack([read_image(path, model) for path in paths])
    images = keras_vit.preprocess_input(raw, model)

    distance = inspection.attention_distance(model, images)
    inspection.plot_attention_distance(distance, args.out / "distance.png")
    inspection.plot_attention_rollout(raw, inspection.attention_rollout(model, images), args.out / "rollout.png")
    try:
        similarity = inspection.position_similarity(model)
    except ValueError as error:
        # Models with relative or rotary positions have no position embeddings to compare.
        print(f"There is no positions.png: {error}")
    else:
        inspection.plot_position_similarity(similarity, args.out / "positions.png")
    inspection.plot_embedding_filters(inspection.embedding_filters(model), args.out / "filters.png")
    inspection.write_report(model, paths, args.out / "report.html")
    print(f"Wrote {args.out / 'report.html'} and figures in the same folder")
    first, last = distance[0].mean(), distance[-1].mean()
    print(f"mean attention distance {first:.1f} pixels in the first block, {last:.1f} in the last")


if __name__ == "__main__":
    main()
