"""Functions for the scripts of this folder: they draw weights and write or check the outputs of a source."""

import argparse
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

HERE = Path(__file__).parent


def arguments(*sources):
    """Parses the command line: checkouts of the sources, --check and names of files."""
    parser = argparse.ArgumentParser()
    for source in sources:
        parser.add_argument(source, type=Path, help="a checkout of it")
    parser.add_argument("names", nargs="*", help="files without their endings; default: all")
    parser.add_argument("--check", action="store_true", help="write nothing and print the differences")
    return parser.parse_args()


def draw(shapes, seed=0):
    """Draws weights of these shapes that differ enough to reveal a missing or misplaced weight."""
    rng = np.random.default_rng(seed)
    centres = {key: len(shape) == 1 and not key.endswith(("bias", "beta")) for key, shape in shapes.items()}
    return {key: rng.normal(centres[key], 0.1, shape).astype("float32") for key, shape in shapes.items()}


def draw_module(module, generator):
    """Draws the parameters of a PyTorch module like `draw`."""
    for key, parameter in sorted(module.named_parameters()):
        centre = 1.0 if parameter.ndim == 1 and "bias" not in key else 0.0
        parameter.data.normal_(centre, 0.2, generator=generator)


def compare(name, kept, found):
    """Prints the largest difference between the kept and the found arrays."""
    if kept.keys() != found.keys():
        raise ValueError(f"{name} keeps {sorted(kept)}, and the source gives {sorted(found)}")
    differences = {key: float(np.abs(np.subtract(kept[key], found[key])).max()) for key in kept}
    worst = max(differences, key=differences.get)
    print(f"{name}: {differences[worst]:.1e} at most, in {worst}, of values up to {np.abs(kept[worst]).max():.3g}")


def spread(kernel):
    """Scales the filters of a kernel, (outputs, ...), so unequally that the epsilon of their deviation matters."""
    return kernel * np.geomspace(1e-3, 1, len(kernel), dtype="float32").reshape(-1, 1, 1, 1)


def write_or_check(args, file, shapes, image_shape, answers, draw=draw):
    """Writes weights and their .io.npz, or compares them with the current result of `answers(weights, images)`."""
    name = file.removesuffix(".npz").removesuffix(".safetensors")
    path, io_path = HERE / file, HERE / f"{name}.io.npz"
    if args.names and name not in args.names:
        return
    if args.check:
        weights = load_file(path) if path.suffix == ".safetensors" else dict(np.load(path))
        if (kept := {key: array.shape for key, array in weights.items()}) != shapes:
            raise ValueError(f"{name} has other weights: {set(kept.items()) ^ set(shapes.items())}")
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
