"""The command line, `keras-vit`: parses and calls."""

import argparse
import json
import sys
from pathlib import Path

from keras_vit.version import __version__

# What a format's file is called.
FILES = {"onnx": ".onnx", "openvino": ".xml", "litert": ".tflite", "torch_export": ".pt2"}

# What brings a package that is not installed.
EXTRAS = {"tensorflow": "data", "tensorflow_datasets": "data", "matplotlib": "inspect", "PIL": "inspect"}


def _list(args):
    from keras_vit.weights import zoo

    print(zoo.table(zoo.list_weights(args.architecture)))


def _show(args):
    from keras_vit.weights.checkpoint import Checkpoint, describe

    print(describe(Checkpoint(args.path, args.source)))


def _convert(args):
    import keras_vit

    model = _read_model(args, args.source_path, source=args.source)
    keras_vit.save_weights(model, args.target_path, args.to, allow=args.allow)
    print(f"Wrote {args.target_path} ({args.to})")


def _predict(args):
    import contextlib

    from keras_vit import prediction_files
    from keras_vit.files import replacing
    from keras_vit.models.classify import classify, table

    header, images = prediction_files.find_images(args.images, args.path_column, args.folder, args.extension)
    names, paths = zip(*images, strict=True)
    top = 1 if args.csv and args.top is None else args.top
    # That its folder does not exist is said before the work.
    with replacing(args.csv) if args.csv else contextlib.nullcontext() as draft:
        model = _read_model(args, args.weights)
        # What is asked for alone goes to stdout.
        with contextlib.redirect_stdout(sys.stderr):
            many = len(paths) > 1
            predictions = classify(model, paths, top, broken="skip" if many else "raise", verbose=int(len(paths) > 32))
        if args.csv:
            prediction_files.write_csv(draft, header, names, predictions)
    if args.csv:
        print(f"Wrote {args.csv}: {len(names)} images")
    else:
        print(prediction_files.as_json(names, predictions) if args.json else table(names, predictions))


def _read_model(args, path, **options):
    from keras_vit.models.saved import read_model

    options |= {"image_size": args.image_size, "num_heads": args.num_heads}
    return read_model(path, **options, **{key: _value(text) for key, text in args.set})


def _value(text):
    """JSON, or a text as it is: 4, 0.5, true, [0.5, 0.5, 0.5], gelu."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _inspect(args):
    import keras_vit

    model = _read_model(args, args.model)
    # A model that takes any size has no costs of its own.
    notes = "" if None in model.input_shape[1:] else str(keras_vit.profile(model))
    path = keras_vit.inspection.write_report(model, args.images, args.out, top=args.top, notes=notes)
    print(f"Wrote {path}")


def _export(args):
    import keras_vit
    from keras_vit.models.classify import read_images
    from keras_vit.models.predictions import names_of, postprocess_of

    options, path = {"overwrite": args.overwrite}, args.out
    if args.to != "saved_model":
        if args.labels:
            raise ValueError(f"Expected --labels with --to saved_model alone. Received: --to {args.to}")
        options["precision"] = args.precision
        path = args.out / f"model{FILES[args.to]}"
    elif args.precision != "float32":
        raise ValueError(f"Expected --precision float32 with --to saved_model. Received: {args.precision}")
    model = _read_model(args, args.model)
    if args.to == "saved_model" and (args.labels or names_of(model)):
        options |= {"postprocess": postprocess_of(model), "labels": args.labels}
    if args.verify:
        options["images"] = keras_vit.preprocess_input(read_images(args.verify, model), model)
    print(getattr(keras_vit.export, args.to)(model, path, **options))


def _recipes(args):
    from keras_vit import training

    if args.name:
        print(training.recipe(args.name).describe())
    else:
        print("\n".join(f"{name:24}{recipe.expected}" for name, recipe in training.RECIPES.items()))


def _train(args):
    from keras_vit import data, inspection, training

    recipe = training.recipe(args.recipe).replace(dict(args.set))
    make_dataset = data.splits(
        args.data,
        data_dir=args.data_dir,
        train_split=recipe.train_split,
        test_split=recipe.test_split,
        holdout=recipe.holdout,
        images=args.images,
        path_column=args.path_column,
        label_column=args.label_column,
        extension=args.extension,
    )
    out = args.out or Path("runs", recipe.name)
    result = training.run(recipe, make_dataset, out, weights=args.weights, seed=args.seed, save_every=args.save_every)
    inspection.plot_history(result.history, out / "history.png")
    print(f"Wrote model.keras, results.json, history.csv and history.png to {out}")
    print(" ".join(f"{name} {value:.4f}" for name, value in result.results["test"].items()))


def _add_model_options(action):
    action.add_argument("--image-size", type=int, help="in pixels (default: as in the weights)")
    action.add_argument("--num-heads", type=int, help="attention heads, where a checkpoint does not tell")
    action.add_argument(
        "--set",
        type=_setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="what else a checkpoint does not tell, or not rightly: activation=gelu, mean=0.5, std=0.5",
    )


def _setting(text):
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected key=value, received {text!r}")
    return key, value


def build_parser():
    """Returns the parser of all commands."""
    parser = argparse.ArgumentParser(prog="keras-vit", description="Vision Transformers for Keras 3.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    weights = commands.add_parser("weights", help="list, inspect and convert checkpoints")
    actions = weights.add_subparsers(required=True, metavar="ACTION")

    action = actions.add_parser("list", help="the published checkpoints known by name")
    action.add_argument("architecture", nargs="?", help="of this builder alone, as in ViTB16")
    action.set_defaults(run=_list)

    action = actions.add_parser("show", help="what a checkpoint is and holds")
    action.add_argument("path", help="a file, or a Hugging Face folder")
    action.add_argument("--source", help="the code base it comes from (default: recognised by its keys)")
    action.set_defaults(run=_show)

    action = actions.add_parser("convert", help="write a checkpoint in another code base's format")
    action.add_argument("source_path", metavar="SRC", help="a file or folder, or a name out of `weights list`")
    action.add_argument("target_path", metavar="DST", help="the file to write; a folder for huggingface")
    action.add_argument("--to", required=True, metavar="FORMAT", help="npz, big_vision, timm or huggingface")
    action.add_argument("--source", help="the code base SRC comes from (default: recognised by its keys)")
    _add_model_options(action)
    action.add_argument(
        "--allow", action="append", default=[], metavar="SETTING", help="activation or layer_norm_epsilon may differ"
    )
    action.set_defaults(run=_convert)

    action = commands.add_parser("predict", help="name the classes of images")
    action.add_argument("images", nargs="+", metavar="IMAGE", help="images, folders of them, or CSV files of paths")
    action.add_argument(
        "--weights",
        required=True,
        help="a .keras file, the folder of a `train` run, a checkpoint, or a name out of `weights list`",
    )
    action.add_argument("--path-column", help="of a CSV file (default: path, or the only one)")
    action.add_argument(
        "--images", dest="folder", type=Path, help="the folder of a CSV file's images (default: the file's own)"
    )
    action.add_argument("--extension", default="", help="what a CSV file's paths lack at their end, as .jpg")
    action.add_argument("--top", type=int, help="how many classes an image (default: 5; in a CSV file 1)")
    form = action.add_mutually_exclusive_group()
    form.add_argument("--csv", type=Path, metavar="FILE", help="write a row an image: path,label,probability")
    form.add_argument("--json", action="store_true", help="print JSON and not a table")
    _add_model_options(action)
    action.set_defaults(run=_predict)

    action = commands.add_parser("inspect", help="write a page that shows what a model sees in images")
    action.add_argument("model", metavar="MODEL", help="a model as of `predict --weights`")
    action.add_argument("images", nargs="+", metavar="IMAGE", help="image files")
    action.add_argument("--out", default="report.html", help="the page to write (default: report.html)")
    action.add_argument("--top", type=int, default=5, help="how many classes an image (default: 5)")
    _add_model_options(action)
    action.set_defaults(run=_inspect)

    action = commands.add_parser("export", help="write a model in a format that servers or devices read")
    action.add_argument("model", metavar="MODEL", help="a model as of `predict --weights`")
    action.add_argument("--to", required=True, choices=("saved_model", *FILES), help="the format")
    action.add_argument(
        "--out", type=Path, required=True, help="the folder to write; of a SavedModel one of a version: models/vit/1"
    )
    action.add_argument(
        "--labels", type=Path, help="a SavedModel's names of classes, one a line (default: the model's)"
    )
    action.add_argument("--precision", default="float32", help="of the weights in the other formats (default: float32)")
    action.add_argument("--verify", nargs="+", metavar="IMAGE", help="image files to compare the answers on")
    action.add_argument("--overwrite", action="store_true", help="replace what is there")
    _add_model_options(action)
    action.set_defaults(run=_export)

    action = commands.add_parser("recipes", help="the papers' training runs, or the settings of one")
    action.add_argument("name", nargs="?", help="the recipe (default: all, with what they reached)")
    action.set_defaults(run=_recipes)

    action = commands.add_parser("train", help="train a model as a recipe says; again, to go on where it was")
    action.add_argument("--recipe", default="finetune", help="a name out of `recipes` (default: finetune)")
    action.add_argument(
        "--data", required=True, help="a folder of class folders, a CSV file, or the name of a TFDS dataset"
    )
    action.add_argument("--images", type=Path, help="the folder of a CSV file's images (default: the file's own)")
    action.add_argument("--path-column", default="path", help="of the CSV file (default: path)")
    action.add_argument("--label-column", default="label", help="of the CSV file (default: label)")
    action.add_argument("--extension", default="", help="what the CSV file's paths lack at their end, as .jpg")
    action.add_argument("--data-dir", help="where TFDS datasets are prepared (default: TFDS' own)")
    action.add_argument("--out", type=Path, help="the run's folder (default: runs/RECIPE)")
    action.add_argument("--weights", help="the checkpoint to start from, or none (default: the recipe's)")
    action.add_argument(
        "--set", type=_setting, action="append", default=[], metavar="KEY=VALUE", help="change a setting"
    )
    action.add_argument(
        "--save-every", type=int, default=500, help="steps between checkpoints in an epoch (default: 500)"
    )
    action.add_argument("--seed", type=int, default=0, help="of weights, order and augmentation (default: 0)")
    action.set_defaults(run=_train)
    return parser


def main(argv=None):
    """Runs a command; returns the exit status: 1 after a message where it could not be done, 130 after Ctrl-C."""
    args = build_parser().parse_args(argv)
    try:
        args.run(args)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(str(error.name).partition(".")[0])
        advice = f': pip install "keras-vit[{extra}]"' if extra else ""
        print(f"keras-vit: {error}{advice}", file=sys.stderr)
        return 1
    except (ValueError, OSError, ImportError, FloatingPointError, RuntimeError) as error:
        print(f"keras-vit: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        goes_on = "; run the same command to go on" if args.run is _train else ""
        print(f"keras-vit: stopped{goes_on}.", file=sys.stderr)
        # What a shell says of a process that Ctrl-C ended.
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
