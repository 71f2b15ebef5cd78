"""Command-line options that several commands share, and the layout of help pages."""

import argparse
from pathlib import Path


def setting(text):
    """Splits the text "KEY=VALUE" into (key, value)."""
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected key=value, received {text!r}")
    return key, value


SETTINGS = {"type": setting, "action": "append", "default": [], "metavar": "KEY=VALUE"}
# {recipe setting with its own option: (type, placeholder of the value, help text)}.
LENGTHS = {
    "epochs": (float, "N", "passes over the training images (default: the recipe's length)"),
    "batch_size": (int, "N", "images per step (default: the recipe's)"),
    "image_size": (int, "PIXELS", "side of the images (default: the recipe's)"),
    "learning_rate": (float, "RATE", "the highest learning rate of the schedule (default: the recipe's)"),
}
# Options shared by several commands.
SOURCE = {"--source": {"help": "the code base of the checkpoint (default: recognised by the checkpoint's keys)"}}
MODEL = {
    "--image-size": {"type": int, "metavar": "PIXELS", "help": "side of the images (default: as in the weights)"},
    "--num-heads": {"type": int, "metavar": "N", "help": "number of attention heads, if it is not in the checkpoint"},
    "--set": {**SETTINGS, "help": "another setting of the model, such as activation=gelu or preprocessing.mean=0.5"},
}
TABLE = {
    "--images": {
        "dest": "folder",
        "type": Path,
        "help": "the folder of a CSV file's images (default: the CSV file's folder)",
    },
    "--path-column": {
        "metavar": "NAME",
        "help": "the CSV file's column of paths (default: path, or in `predict` a file's only column)",
    },
    "--extension": {"default": "", "metavar": "SUFFIX", "help": "appended to the CSV file's paths, such as .jpg"},
}


def page(help, examples, note=""):
    """Returns the `argparse` settings of a help page, which begins with `help` and ends with `examples` and `note`."""
    return {
        "description": f"{help[0].upper()}{help[1:]}.",
        "epilog": "\n  ".join(["examples:", *examples]) + note,
        # This class keeps the line breaks of the examples.
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }


class Parser(argparse.ArgumentParser):
    """An argument parser whose attribute `options` lists the names of its options."""

    def __init__(self, *args, **kwargs):
        self.options = []
        super().__init__(*args, **kwargs)

    def add_argument(self, *args, **kwargs):
        action = super().add_argument(*args, **kwargs)
        self.options += action.option_strings
        return action
