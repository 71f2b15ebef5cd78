"""What scripts of this folder share: drawing weights, and writing what a source computes or checking what is kept."""

import argparse
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

HERE = Path(__file__).parent


def arguments(*sources):
    """The command line: checkouts of the sources, whether only to check, and which files, all where none is named."""
    parser = argparse.ArgumentParser()
    for source in sources:
        parser.add_argument(source, type=Path, help="a checkout of it")
    parser.add_argument("names", nargs="*", help="the files, without their endings; all of them where none is named")
    parser.add_argument("--check", action="store_true", help="write nothing, print how far the kept answers are")
    return parser.parse_args()


def draw(shapes, seed=0):
    """Random weights of these shapes, wide enough that one left out or in another's place is seen."""
    rng = np.random.default_rng(seed)
    centres = {key: len(shape) == 1 and not key.endswith(("bias", "beta")) for key, shape in shapes.items()}
    return {key: rng.normal(centres[key], 0.1, shape).astype("float32") for key, shape in shapes.items()}


def compare(name, kept, found):
    """Prints the largest difference of the arrays that are kept from those that are found."""
    if kept.keys() != found.keys():
        raise ValueError(f"{name} keeps {sorted(kept)}, and the source gives {sorted(found)}")
    differences = {key: float(np.abs(np.subtract(kept[key], found[key])).max()) for key in kept}
    worst = max(differences, key=differences.get)
    print(f"{name}: {differences[worst]:.1e} at most, in {worst}, of values up to {np.abs(kept[worst]).max():.3g}")


def spread(kernel):
    """A convolution's kernel, (outputs, ...), of filters so unequal that the epsilon of their standard is seen."""
    return kernel * np.geomspace(1e-3, 1, len(kernel), dtype="float32").reshape(-1, 1, 1, 1)


def write_or_check(args, file, shapes, image_shape, answers, draw=draw):
    """Makes a file of weights and its .io.npz, or compares them with what `answers(weights, images)` gives now."""
    name = file.removesuffix(".npz").removesuffix(".safetensors")
    path, io_path = HERE / file, HERE / f"{name}.io.npz"
    if args.names and name not in args.names:
        return
    if args.check:
        weights = load_file(path) if path.suffix == ".safetensors" else dict(np.load(path))
        if (kept := {key: array.shape for key, array in weights.items()}) != shapes:
            raise ValueError(
                f"{name} keeps weights of other names or shapes: {set(kept.items()) ^ set(shapes.items())}"
            )
        io = dict(np.load(io_path))
        compare(name, io, answers(weights, io.pop("images")))
        return
    weights = draw(shapes)
    images = np.random.default_rng(1).normal(size=image_shape).astype("float32")
    if path.suffix == ".safetensors":
        save_file(weights, path)
    else:
        np.savez_compressed(path, **weights)
    np.savez_compressed(io_path, images=images, **answers(weights, images))
