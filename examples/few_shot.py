"""Measures the accuracy of a linear classifier that is fitted to frozen features of a few images per class.

Paper:    arXiv 2010.11929, section 4.1 (few-shot evaluation), figure 4.
Command:  python examples/few_shot.py --weights ViT-B_16-224.npz --dataset flowers17 --holdout 0.5 --shots 1 5 10
Hardware: 0.17 hours on 2 CPU cores with TensorFlow, while other programs also used the cores.
Expected: mean test accuracy over 3 random draws on Oxford 17 Flowers: 0.9745 for 1, 0.9941 for 5 and 0.9946 for 10
          images per class.
"""

import argparse
import csv
import json
import time
from pathlib import Path

import numpy as np

import keras_vit
from keras_vit.evaluation import extract_features, few_shot_accuracy


def positive_int(text):
    """Parses an integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, received {text!r}")
    return int(text)


def parse_arguments(argv=None):
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description="Measures the few-shot accuracy of a pretrained model's frozen features. Weights are "
        "downloaded only if --weights is a name instead of a path. Data sets are not downloaded. The environment "
        "variable KERAS_BACKEND selects the backend.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--weights", required=True, help="a checkpoint, such as an official .npz file or hf://owner/name")
    add("--dataset", required=True, help="a folder with one folder of images per class, or the name of a TFDS dataset")
    add("--data-dir", help="the folder of prepared TFDS datasets")
    add("--out", type=Path, default=Path("runs/few_shot"), help="the folder for the files that the script writes")
    add("--image-size", type=positive_int, default=224, help="the image size in pixels, at least the patch size")
    add("--holdout", type=float, default=0.2, help="fraction of each class to test on, if a dataset has no test images")
    add("--shots", type=positive_int, nargs="+", default=[10], help="numbers of training images per class")
    add("--draws", type=positive_int, default=3, help="the number of random sets of training images")
    add("--seed", type=int, default=0, help="the random seed of the split into training and test images")
    add("--batch-size", type=positive_int, default=32, help="the number of images per step")
    return parser.parse_args(argv)


def main(argv=None):
    """Extracts the features once, and measures the accuracy for each number of training images per class."""
    args = parse_arguments(argv)
    start = time.perf_counter()
    try:
        model = keras_vit.from_pretrained(
            args.weights, image_size=args.image_size, num_classes=0, include_preprocessing=True
        )
        make = keras_vit.data.splits(args.dataset, data_dir=args.data_dir, holdout=args.holdout)
        options = {"preprocessing": model, "image_size": args.image_size, "training": False, "normalize": False}
        options["batch_size"] = args.batch_size
        train, test = (extract_features(model, make(part, seed=args.seed, **options)) for part in ("train", "test"))
        seconds = time.perf_counter() - start
        rows = []
        for shots in args.shots:
            result = few_shot_accuracy(None, train, test, shots=shots, seeds=range(args.draws))
            row = {
                "shots": shots,
                "accuracy": result["accuracy"],
                "lowest": min(result["by_seed"].values()),
                "highest": max(result["by_seed"].values()),
                # This accuracy uses the regularization strength that is best on the test images, as in the paper.
                "accuracy_of_best_strength": max(result["by_l2"].values()),
            }
            rows.append(row)
    except (ValueError, OSError, ImportError) as error:
        raise SystemExit(str(error)) from error
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "few_shot.json").write_text(json.dumps(rows, indent=1) + "\n")
    with open(args.out / "few_shot.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    classes = len(np.unique(train[1]))
    print(f"{classes} classes, {len(train[1])} images to train on, {len(test[1])} to test on")
    print(f"features took {seconds:.0f} s, all in all {time.perf_counter() - start:.0f} s")
    for row in rows:
        print("  ".join(f"{name} {value:.4g}" for name, value in row.items()))
    print(f"test accuracy {rows[-1]['accuracy']:.4f}")


if __name__ == "__main__":
    main()
