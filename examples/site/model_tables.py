"""Makes tables of the package's models and of their published checkpoints for the pages of the site."""

import functools
import re

import keras
from markdown_table import markdown_table

import keras_vit
from keras_vit.models import builders

# Browsers do not break a line at this hyphen.
NO_BREAK = "&#8209;"
FAMILY_BUILDERS = ("ViT", "BiT", "CoAtNet", "EfficientNet", "VTResNet")
COLUMNS = ["Builder", "Variant", "Image size", "Parameters (M)", "`weights=` (ImageNet top-1, %)"]
# {family: regular expression for the start of its builders' names}.
FAMILIES = {
    "ViT": r"ViT",
    "Hybrids": r"R\d*ViT",
    "DeiT": r"DeiT(?!3)",
    "DeiT III": r"DeiT3",
    "I-JEPA": r"IJEPA",
    "DINOv2": r"DINOv2",
    "DINOv3": r"DINOv3",
    "CLIP": r"CLIP",
    "EVA-02": r"EVA02",
    "SigLIP": r"SigLIP",
    "BiT": r"BiT",
    "CoAtNet": r"CoAtNet",
    "EfficientNet": r"EfficientNet",
    "VT-ResNet": r"VTResNet",
}


def names_of(family):
    """Returns the names of a family's builders, in the order of `builders.__all__`."""
    return [name for name in builders.__all__ if re.match(FAMILIES[family], name)]


@functools.cache
def model_of(name):
    """Returns the model of a builder. Its weights have shapes but no values."""
    with keras.StatelessScope(initialize_variables=False):
        model = getattr(builders, name)()
    keras.utils.clear_session(free_memory=False)
    return model


def builder_row(name, link):
    """Returns the row of a builder: its link, variant, default image size, parameters and published checkpoints."""
    model = model_of(name)
    variant = re.search(r"\(\"([^\"]+)\"", getattr(builders, name).__doc__)[1]
    tags = [
        f'"{row.tag}"' + (f" ({row.accuracy:.1f})" if row.accuracy else "")
        for row in keras_vit.list_weights()
        if row.architecture == name
    ]
    return [link, f"`{variant}`", model.input_shape[1], f"{model.count_params() / 1e6:,.1f}", ", ".join(tags)]


def family(name):
    """Returns a table of a family's builders: variant, default image size, parameters and published checkpoints."""
    rows = [builder_row(builder, f"[`{builder}`][keras_vit.{builder}]") for builder in names_of(name)]
    columns = COLUMNS
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return markdown_table(columns, rows)


def all_builders():
    """Returns a table of the builders of all families. Links to a builder lead to its row."""
    names = [name for family in FAMILIES for name in names_of(family)]
    # Add an anchor to each row, as the target of links to the builder.
    return markdown_table(COLUMNS, [builder_row(name, f"[](){{#keras_vit.{name}}}`{name}`") for name in names])


def checkpoints():
    """Returns a table of all published checkpoints."""
    rows = [
        [
            f"[`{row.architecture}`][keras_vit.{row.architecture}]",
            f'`"{row.tag}"`',
            row.resolution,
            f"{row.num_classes:,}" if row.num_classes else "none",
            f"{row.accuracy:.2f}" if row.accuracy else None,
            row.license.replace("-", NO_BREAK),
            f"[{row.url.rsplit('/', 1)[-1].replace('%2B', '+')}]({row.url})",
        ]
        for row in keras_vit.list_weights()
    ]
    columns = ["Builder", "`weights=`", "Pixels", "Classes", "ImageNet top-1 (%)", "Licence", "File"]
    return markdown_table(columns, rows)


TABLES = {"family": family, "checkpoints": checkpoints}
