"""The `keras-vit` command line."""

import contextlib
import json
import os
import sys
from pathlib import Path

from keras_vit.arguments import nearest
from keras_vit.cli_options import LENGTHS, MODEL, SETTINGS, SOURCE, TABLE, Parser, page
from keras_vit.version import __version__

FORMATS = ("saved_model", "onnx", "openvino", "litert", "torch_export")
# {missing module: the packages to install}.
PACKAGES = {
    "tensorflow": "tensorflow",
    "tensorflow_datasets": "tensorflow-datasets importlib_resources",
    "matplotlib": "matplotlib",
    "PIL": "pillow",
}


def _print(text, file=None):
    from keras_vit.console import write

    write(text, file)


def _list(args):
    from keras_vit.models import zoo

    rows = zoo.containing(args.name)
    _print(zoo.table(rows, args.columns.split(",")) if args.columns else zoo.table(rows))


def _show(args):
    from keras_vit.models.loading import describe

    _print(describe(args.path, args.source))


def _convert(args):
    import keras_vit

    model = _read_model(args, args.source_path, source=args.source)
    with _off_stdout():
        keras_vit.save_weights(model, args.target_path, args.to, allow=args.allow)
    _print(f"Wrote {args.target_path} ({args.to})")


def _predict(args):
    from keras_vit.files import replacing
    from keras_vit.prediction import files as prediction_files
    from keras_vit.prediction.classify import classify, table

    header, images = prediction_files.find_images(args.images, args.path_column, args.folder, args.extension)
    names, paths = zip(*images, strict=True)
    chosen = args.id_column or args.label_column
    if chosen and (args.csv is None or args.top not in (1, None)):
        received = f"--csv {args.csv}, --top {args.top}"
        raise ValueError(f"--id-column and --label-column need --csv, and exclude --top. Received: {received}")
    trained = prediction_files.table_columns(args.weights) if args.csv and args.top is None else None
    id_column, label_column = trained or (header, "label")
    columns = [args.id_column or id_column, args.label_column or label_column] if chosen or trained else None
    top = 1 if args.csv and args.top is None else args.top
    # Call `replacing` before the slow work, because it fails if the folder is missing.
    with replacing(args.csv) if args.csv else contextlib.nullcontext() as draft:
        model = _read_model(args, args.weights)
        if columns:
            prediction_files.check_submission(model)
        with _off_stdout():
            predictions = classify(model, paths, top, broken="skip" if len(paths) > 1 else "raise")
        if columns:
            prediction_files.write_submission(draft, *columns, names, predictions, args.escape_formulas)
        elif args.csv:
            prediction_files.write_csv(draft, header, names, predictions, args.escape_formulas)
    if args.csv:
        _print(f"Wrote {args.csv}: {len(names)} images")
    else:
        _print(prediction_files.as_json(names, predictions) if args.json else table(names, predictions))


def _off_stdout():
    """Redirects progress bars to stderr, because stdout is only for the result."""
    return contextlib.redirect_stdout(sys.stderr)


def _read_model(args, path, **options):
    import keras_vit

    options |= {"image_size": args.image_size, "num_heads": args.num_heads}
    options = {name: value for name, value in options.items() if value is not None}
    with _off_stdout():
        return keras_vit.from_pretrained(path, **options | _settings(args.set))


def _settings(pairs):
    """Converts the pairs of --set to a dict. The key "preprocessing.mean" sets an entry of the dict "preprocessing"."""
    found = {}
    for key, text in pairs:
        name, dot, part = key.partition(".")
        place, name = (found.setdefault(name, {}), part) if dot else (found, name)
        place[name] = _value(text)
    return found


def _value(text):
    """Parses JSON, such as 4, true or [0.5, 0.5, 0.5]; returns other text, such as gelu, unchanged."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _evaluate(args):
    from keras_vit import data, evaluation, inspection
    from keras_vit.evaluation.confusion import report_text
    from keras_vit.prediction.classes import folder_names

    columns = {"path_column": args.path_column, "label_column": args.label_column, "extension": args.extension}
    table = {name: value for name, value in {"directory": args.folder, **columns}.items() if value}
    read = data.from_dataframe if args.data.suffix.lower() == ".csv" else data.from_directory
    if table and read is data.from_directory:
        expected = "--images, --path-column, --label-column and --extension only if --data is a CSV file"
        raise ValueError(f"Expected {expected}. Received: --data {args.data}. Remove these options")
    model = _read_model(args, args.model)
    common = {"class_names": folder_names(model), "preprocessing": model, "training": False}
    with _off_stdout():
        report = evaluation.classification_report(model, read(args.data, **table, **common), num_mistakes=args.mistakes)
    _print(report_text(report))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        names, mistakes = report["class_names"], report.get("mistakes")
        evaluation.write_confusion_matrix(report["confusion_matrix"], names, args.out / "confusion.csv")
        evaluation.plot_confusion_matrix(report["confusion_matrix"], names, args.out / "confusion.png")
        if count := len(mistakes["labels"]) if mistakes else 0:
            pictures = [mistakes[key] for key in ("images", "labels", "probabilities")]
            inspection.plot_predictions(*pictures, names, args.out / "mistakes.png")
        _print(f"Wrote confusion.csv, confusion.png and the {count} worst mistakes to {args.out}")


def _inspect(args):
    import keras_vit

    model = _read_model(args, args.model)
    # The costs of a model for images of any size are unknown.
    notes = "" if None in model.input_shape[1:] else str(keras_vit.profile(model))
    with _off_stdout():
        path = keras_vit.inspection.write_report(model, args.images, args.out, top=args.top, notes=notes)
    _print(f"Wrote {path}")


def _export(args):
    import keras_vit
    from keras_vit.prediction.classes import gives_classes, postprocess_kind
    from keras_vit.prediction.classify import read_images

    options, path = {"overwrite": args.overwrite}, args.out
    if args.to != "saved_model":
        for name in ("labels", "attention"):
            if getattr(args, name):
                raise ValueError(f"Expected --{name} only with --to saved_model. Received: --to {args.to}")
        options["precision"] = args.precision
        path = args.out / f"model{keras_vit.export.formats.FORMATS[args.to].suffix}"
    elif args.precision != "float32":
        raise ValueError(f"Expected --precision float32 with --to saved_model. Received: {args.precision}")
    model = _read_model(args, args.model)
    if args.attention:
        options["attention"] = True
    if args.to == "saved_model" and (args.labels or gives_classes(model)):
        options |= {"postprocess": postprocess_kind(model), "labels": args.labels}
    if args.verify:
        options["images"] = keras_vit.preprocess_input(read_images(args.verify, model), model)
    with _off_stdout():
        report = getattr(keras_vit.export, args.to)(model, path, **options)
    _print(keras_vit.export.parity.summary(report))


def _recipes(args):
    from keras_vit import training

    if args.name:
        _print(training.RECIPES[args.name].describe())
    else:
        _print("\n".join(f"{name:24}{recipe.expected}" for name, recipe in training.RECIPES.items()))


def _train(args):
    # The plot at the end needs matplotlib. If it is missing, fail before the training.
    import matplotlib  # noqa: F401

    from keras_vit import data, distribution, inspection, training

    if args.coordinator is None and args.process_id is None:
        # torchrun runs this command again in each process. These processes must not start more processes.
        if args.processes and "TORCHELASTIC_RUN_ID" not in os.environ:
            return distribution.launch(args.command, args.processes)
        distribution.initialize()
    else:
        distribution.initialize(args.coordinator, args.processes, args.process_id)
    options = {key: getattr(args, key) for key in LENGTHS if getattr(args, key) is not None}
    recipe = training.RECIPES[args.recipe].replace(options | dict(args.set))
    make_dataset = data.splits(
        args.data,
        data_dir=args.data_dir,
        train_split=recipe.train_split,
        test_split=recipe.test_split,
        holdout=recipe.holdout,
        images=args.folder,
        path_column=args.path_column,
        label_column=args.label_column,
        extension=args.extension,
    )
    out = args.out or Path("runs", recipe.name)
    result = training.run(
        recipe,
        make_dataset,
        out,
        weights=args.weights,
        seed=args.seed,
        save_every=args.save_every,
        distribution=args.distribution,
        model_devices=args.model_devices,
    )
    if distribution.process_id():
        return
    inspection.plot_history(result.history, out / "history.png")
    _print(f"Wrote model.keras, results.json, history.csv and history.png to {out}")
    _print(" ".join(f"{name} {value:.4f}" for name, value in result.results["test"].items()))


def build_parser():
    """Returns the parser for all commands."""
    examples = [
        "keras-vit train --data photos --weights ViT-B_16-224.npz --out runs/photos",
        "keras-vit predict cat.jpg --weights runs/photos",
        "keras-vit export runs/photos --to onnx --out exported",
    ]
    note = (
        "\n\n`keras-vit COMMAND --help` shows the options of a command. The environment variable\n"
        "KERAS_BACKEND chooses the backend: tensorflow, jax or torch."
    )
    parser = Parser(prog="keras-vit", **page("Vision Transformers for Keras 3", examples, note))
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, title="commands", metavar="COMMAND")

    def command(name, run, help, examples, shared, within=commands):
        action = within.add_parser(name, help=help, **page(help, examples))
        for option, settings in shared.items():
            action.add_argument(option, **settings)
        action.set_defaults(run=run, parser=action)
        return action

    help, examples = "list, show and convert checkpoints", ["keras-vit weights list ViTB16"]
    weights = commands.add_parser("weights", help=help, **page(help, examples))
    actions = weights.add_subparsers(required=True, title="actions", metavar="ACTION")

    kept = "a .keras file, the folder of a `train` run, a checkpoint, a name from `weights list`, or hf://owner/name"
    help = "list the published checkpoints that can be loaded by name"
    examples = ["keras-vit weights list ViTB16", "keras-vit weights list dino --columns name,license,url"]
    add = command("list", _list, help, examples, {}, actions).add_argument
    add("name", nargs="?", default="", help="show only names that contain this text, such as ViTB16 or dino")
    help = "columns: name, params, resolution, classes, top-1, license, source, sha256, url (default: the first seven)"
    add("--columns", metavar="A,B", help=help)

    help = "show the model and arrays in a checkpoint"
    add = command("show", _show, help, ["keras-vit weights show ViT-B_16-224.npz"], SOURCE, actions).add_argument
    add("path", help="a file, a Hugging Face folder, or hf://owner/name")

    help = "write a checkpoint in another code base's format"
    examples = ["keras-vit weights convert ViT-B_16-224.npz vit_b16 --to huggingface"]
    add = command("convert", _convert, help, examples, SOURCE | MODEL, actions).add_argument
    add("source_path", metavar="SRC", help=kept)
    help = "the file to write, or hf://owner/name; a folder for huggingface, a folder or .safetensors file for timm"
    add("target_path", metavar="DST", help=help)
    add("--to", required=True, metavar="FORMAT", help="npz, big_vision, timm or huggingface")
    help = (
        "a setting that may differ in FORMAT's library: activation, layer_norm_epsilon, resnet_epsilons, pool_padding"
    )
    add("--allow", action="append", default=[], metavar="SETTING", help=help)

    examples = ["keras-vit predict cat.jpg dog.jpg --weights ViT-B_16-224.npz"]
    table = "keras-vit predict test.csv --images photos --weights runs/species --csv"
    examples += [f"{table} predictions.csv", f"{table} submission.csv --id-column id --label-column species"]
    action = command("predict", _predict, "predict the classes of images", examples, TABLE | MODEL)
    add = action.add_argument
    add("images", nargs="+", metavar="IMAGE", help="image files, folders of images, or CSV files of paths")
    add("--weights", required=True, metavar="MODEL", help=kept)
    add("--top", type=int, metavar="N", help="classes per image (default: 5; in a CSV file 1)")
    help = "write only two CSV columns, as competitions expect, and give the column of images this name"
    add("--id-column", metavar="NAME", help=help)
    add("--label-column", metavar="NAME", help="write only two CSV columns, and give the column of classes this name")
    help = "write ' before cells that start with = + - or @, because spreadsheets would compute them"
    add("--escape-formulas", action="store_true", help=help)
    form = action.add_mutually_exclusive_group()
    help = "write path, label and probability per image; for a run trained on a table, only that table's two columns"
    form.add_argument("--csv", type=Path, metavar="FILE", help=help)
    form.add_argument("--json", action="store_true", help="print JSON instead of a table")

    help = "measure a classifier on labelled images"
    examples = ["keras-vit evaluate runs/species --data test --out runs/species/test"]
    examples += ["keras-vit evaluate runs/species --data test.csv --images photos --label-column species"]
    add = command("evaluate", _evaluate, help, examples, TABLE | MODEL).add_argument
    add("model", metavar="MODEL", help=kept)
    add("--data", required=True, type=Path, help="a folder of class folders, or a CSV file; all its images are used")
    add("--label-column", metavar="NAME", help="the CSV file's column of labels (default: label)")
    help = "write the confusion matrix (CSV and picture) and the worst mistakes (picture) to this folder"
    add("--out", type=Path, metavar="FOLDER", help=help)
    add("--mistakes", type=int, default=24, metavar="N", help="number of worst mistakes in the picture (default: 24)")

    help = "write a page that shows what a model sees in images"
    examples = ["keras-vit inspect ViT-B_16-224.npz cat.jpg --out report.html"]
    add = command("inspect", _inspect, help, examples, MODEL).add_argument
    add("model", metavar="MODEL", help=kept)
    add("images", nargs="+", metavar="IMAGE", help="image files")
    add("--out", default="report.html", metavar="FILE", help="the page to write (default: report.html)")
    add("--top", type=int, default=5, metavar="N", help="classes per image (default: 5)")

    help = "write a model in a format that servers or devices read"
    examples = ["keras-vit export runs/species --to saved_model --out models/species/1"]
    examples += ["keras-vit export ViT-B_16-224.npz --to onnx --out exported --verify cat.jpg dog.jpg"]
    add = command("export", _export, help, examples, MODEL).add_argument
    add("model", metavar="MODEL", help=kept)
    add("--to", required=True, choices=FORMATS, metavar="FORMAT", help=", ".join(FORMATS))
    help = "the folder to write; a SavedModel needs one folder per version, such as models/vit/1"
    add("--out", type=Path, required=True, metavar="FOLDER", help=help)
    help = "a text file of class names for a SavedModel, one per line (default: the model's names)"
    add("--labels", type=Path, metavar="FILE", help=help)
    add("--attention", action="store_true", help="add a signature that returns the attention rollout (SavedModel)")
    kinds = "float32 (default), float16, bfloat16, int8; for openvino also int8_static"
    help = f"precision of the stored weights, not for saved_model: {kinds}"
    add("--precision", default="float32", metavar="DTYPE", help=help)
    add("--verify", nargs="+", metavar="IMAGE", help="image files on which to compare the export with the model")
    add("--overwrite", action="store_true", help="replace existing files")

    help = "list the recipes for training, or show the settings of one"
    add = command("recipes", _recipes, help, ["keras-vit recipes finetune_pets"], {}).add_argument
    add("name", nargs="?", help="the recipe to show (default: list all recipes with results)")

    help = "train a model by a recipe; run the same command again to continue"
    examples = [
        "keras-vit train --data photos --weights ViT-B_16-224.npz --out runs/photos",
        "keras-vit train --data train.csv --images photos --label-column species --weights ViT-B_16-224.npz",
        "keras-vit train --recipe finetune_pets --data my_pets --set image_size=224 --set batch_size=32",
    ]
    action = command("train", _train, help, examples, TABLE)
    action.set_defaults(path_column="path")
    add = action.add_argument
    add("--recipe", default="finetune", metavar="NAME", help="a name from `recipes` (default: finetune)")
    add("--data", required=True, help="a folder of class folders, a CSV file, or the name of a TFDS dataset")
    add("--label-column", default="label", metavar="NAME", help="the CSV file's column of labels (default: label)")
    add("--data-dir", metavar="FOLDER", help="the folder of prepared TFDS datasets (default: chosen by TFDS)")
    add("--out", type=Path, metavar="FOLDER", help="the run's folder (default: runs/RECIPE)")
    help = "initial weights: a path, hf://owner/name, a tag (imagenet21k), or none: random (default: the recipe's)"
    add("--weights", metavar="MODEL", help=help)
    for name, (kind, metavar, help) in LENGTHS.items():
        add(f"--{name.replace('_', '-')}", type=kind, metavar=metavar, help=help)
    add("--set", **SETTINGS, help="change a setting of the recipe; `recipes NAME` shows all of them")
    add("--save-every", type=int, default=500, metavar="N", help="steps between checkpoints in an epoch (default: 500)")
    help = "seed of the initial weights, the order of images and the augmentation (default: 0)"
    add("--seed", type=int, default=0, metavar="N", help=help)
    kinds = "data or, only on JAX, fsdp, tensor or fsdp+tensor"
    add("--distribution", metavar="KIND", help=f"train on several devices: {kinds} (default: one device)")
    help = "devices that share one copy of the model (default: all for tensor, 2 for fsdp+tensor)"
    add("--model-devices", type=int, metavar="N", help=help)
    help = "start this many PyTorch processes with torchrun; with --coordinator, the total number of processes"
    add("--processes", type=int, metavar="N", help=help)
    help = "number of this process, counted from 0 (default: set by torchrun or, on JAX, by SLURM)"
    add("--process-id", type=int, metavar="I", help=help)
    help = "the address of process 0 (default: set by torchrun or, on JAX, by SLURM)"
    add("--coordinator", metavar="HOST:PORT", help=help)
    return parser


def parse(argv=None):
    """Returns the parsed arguments of a command; exits after `--help` or a wrong argument. Imports no backend."""
    args, unknown = build_parser().parse_known_args(argv)
    if unknown:
        args.parser.error(f"unknown argument {unknown[0]}{nearest(unknown[0], args.parser.options)}")
    return args


def main(argv=None):
    """Runs a command and returns the exit status: 0, 1 after an error, or 130 after Ctrl-C."""
    args = parse(argv)
    args.command = sys.argv[1:] if argv is None else list(argv)
    try:
        args.run(args)
    except (ValueError, OSError, ImportError, FloatingPointError, RuntimeError) as error:
        package = PACKAGES.get(str(error.name).partition(".")[0]) if isinstance(error, ModuleNotFoundError) else None
        _print(f"keras-vit: {error}" + (f": pip install {package}" if package else ""), sys.stderr)
        return 1
    except KeyboardInterrupt:
        _print(f"keras-vit: stopped{'; run the same command to continue' if args.run is _train else ''}.", sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
