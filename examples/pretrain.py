"""Pre-trains a small Vision Transformer on images without labels, and plots its predictions for masked patches.

The images come from --dataset, by default scikit-learn's 1,797 handwritten digits, resized to 32 x 32. The script
writes `reconstructions.png` and `backbone.npz`. To use the pretrained weights, pass `backbone.npz` to
`keras_vit.ViT(..., weights=...)` or `keras_vit.load_weights`.

Papers:   arXiv 2010.11929, appendix B.1.2 (masked_patch); 2111.09886 (simmim); 2111.06377 (mae).
Command:  python examples/pretrain.py --method mae
Hardware: 2 CPU cores, a few minutes.
Expected: the loss falls, and the predicted digits are readable. benchmarks/pretraining.py measures how much
          pre-training improves the accuracy.
"""

import argparse
from pathlib import Path

import keras
import numpy as np

import keras_vit
import keras_vit.data
from keras_vit.pretraining import MAE, MaskedPatchPrediction, SimMIM, TensorBoardReconstructions, plot_reconstructions
from keras_vit.training import AdamW, WarmupDecay

METHODS = ("masked_patch", "simmim", "mae")


def positive_int(text):
    """Parses an integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, received {text!r}")
    return int(text)


def parse_arguments(argv=None):
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description="Pre-trains a small Vision Transformer on masked images. Nothing is downloaded. The environment "
        "variable KERAS_BACKEND selects the backend.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--method", choices=METHODS, default="mae", help="masked patch prediction, SimMIM or MAE")
    add("--dataset", default="digits", help="digits, a folder of images, or a TFDS name")
    add("--data-dir", help="the folder of prepared TFDS datasets")
    add("--out", type=Path, default=Path("runs/pretrain"), help="folder for backbone.npz and reconstructions.png")
    add("--image-size", type=positive_int, default=32, help="the image size in pixels")
    add("--patch-size", type=positive_int, default=4, help="the patch size in pixels")
    add("--mask-unit", type=positive_int, default=8, help="the side in pixels of the squares that SimMIM masks")
    add("--hidden-dim", type=positive_int, default=96, help="the width of a token")
    add("--num-layers", type=positive_int, default=4, help="the number of blocks")
    add("--epochs", type=positive_int, default=30, help="the number of epochs")
    add("--batch-size", type=positive_int, default=64, help="the number of images per step")
    add("--learning-rate", type=float, default=2e-3, help="the maximum learning rate, after the warmup")
    add("--seed", type=int, default=0, help="the random seed of the weights, the order of the images and the masks")
    add("--tensorboard", action="store_true", help="write pictures for TensorBoard to OUT/logs every 5 epochs")
    return parser.parse_args(argv)


def load_images(args):
    """Returns the training images in [0, 255], the first images as an array, and the number of steps per epoch."""
    size = args.image_size
    if args.dataset == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits().images[..., None] * (255 / 16)
        images = keras.ops.convert_to_numpy(keras.ops.image.resize(digits, (size, size), data_format="channels_last"))
        return images.astype("float32"), images[:8].astype("float32"), -(-len(images) // args.batch_size)
    options = {"image_size": size, "batch_size": args.batch_size, "seed": args.seed, "normalize": False}
    options["labels"] = "none"
    if Path(args.dataset).is_dir():
        data = keras_vit.data.from_directory(args.dataset, **options)
    else:
        data = keras_vit.data.load(args.dataset, "train", data_dir=args.data_dir, **options)
    return data, next(iter(data)).numpy()[:8], len(data)


def build_backbone(args, channels):
    """Builds a ViT without a head for raw images in [0, 255]. Each attention head has at least 32 dimensions."""
    num_heads = next(n for n in range(max(1, args.hidden_dim // 32), 0, -1) if args.hidden_dim % n == 0)
    return keras_vit.ViT(
        "Ti/16",
        image_size=args.image_size,
        patch_size=args.patch_size,
        in_channels=channels,
        num_classes=0,
        hidden_dim=args.hidden_dim,
        num_layers=args.num_layers,
        num_heads=num_heads,
        mlp_dim=2 * args.hidden_dim,
        include_preprocessing=True,
    )


def main(argv=None):
    """Pre-trains a model, saves its backbone and plots its predictions."""
    args = parse_arguments(argv)
    keras.utils.set_random_seed(args.seed)
    data, examples, steps = load_images(args)
    backbone = build_backbone(args, examples.shape[-1])
    if args.method == "masked_patch":
        model = MaskedPatchPrediction(backbone, seed=args.seed)
    elif args.method == "simmim":
        model = SimMIM(backbone, mask_unit=args.mask_unit, seed=args.seed)
    else:
        model = MAE(backbone, decoder_num_layers=2, seed=args.seed)
    steps *= args.epochs
    model.compile(AdamW(WarmupDecay(args.learning_rate, total_steps=steps, warmup_steps=steps // 10)))
    args.out.mkdir(parents=True, exist_ok=True)
    pictures = TensorBoardReconstructions(args.out / "logs", examples, every=5)
    # Arrays need a batch size. Datasets are already shuffled and batched.
    fit_options = {"batch_size": args.batch_size} if isinstance(data, np.ndarray) else {"shuffle": False}
    history = model.fit(data, epochs=args.epochs, callbacks=[pictures] if args.tensorboard else [], **fit_options)
    keras_vit.save_weights(model.backbone, args.out / "backbone.npz")
    plot_reconstructions(model.reconstruct(examples), args.out / "reconstructions.png")
    print(
        f"Pre-trained {backbone.count_params():,} parameters by {args.method} on {args.dataset}, {args.epochs} epochs. "
        f"Wrote {args.out / 'backbone.npz'}, {args.out / 'reconstructions.png'}"
    )
    print(f"loss {history.history['loss'][0]:.4f} at first, {history.history['loss'][-1]:.4f} at last")


if __name__ == "__main__":
    main()
