"""Writes an HTML report of a model on some images."""

import base64
import html
import io
import os
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.console import Progress
from keras_vit.files import replacing
from keras_vit.inspection.attention import attention_distance, attention_maps, attention_rollout
from keras_vit.inspection.attention_plots import plot_attention_distance, plot_attention_maps, plot_attention_rollout
from keras_vit.inspection.gradients import gradient_rollout
from keras_vit.inspection.inputs import patch_layout
from keras_vit.inspection.weights import (
    embedding_filters,
    plot_embedding_filters,
    plot_position_similarity,
    position_similarity,
)
from keras_vit.layers import PositionEmbedding
from keras_vit.prediction.classes import gives_classes
from keras_vit.prediction.classify import classify, read_image
from keras_vit.prediction.preprocessing import scaled
from keras_vit.prediction.taps import AttentionTaps, sublayers

_STYLE = """
:root { color-scheme: light }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1c1c1c }
h1, h2, h3 { line-height: 1.2 } h2 { margin-top: 2.5rem; border-bottom: 1px solid #ccc }
figure { margin: 1rem 0 } figure img { max-width: 100%; height: auto } figcaption { color: #555; font-size: .9rem }
table { border-collapse: collapse } th, td { text-align: left; padding: .2rem .8rem; border-bottom: 1px solid #ddd }
td.number { text-align: right; font-variant-numeric: tabular-nums }
td.bar { width: 14rem } td.bar div { background: #1f77b4; height: .7rem }
pre { overflow-x: auto; font-size: .75rem; line-height: 1.2; background: #f6f6f6; padding: 1rem }
"""


def write_report(
    model: keras.Model,
    images: Sequence[str | os.PathLike],
    path: str | os.PathLike,
    *,
    top: int = 5,
    readout: str | None = None,
    title: str | None = None,
    notes: str = "",
) -> Path:
    """Writes a single HTML file that shows how a model processes some images, and returns its path.

    The part for each image shows the top classes, the attention rollout, the gradient rollout for the top-1 class, and
    the attention of each head in the last block. The part for the model shows the mean attention distance, the position
    similarity, the embedding filters and Keras' summary.

    Args:
        model: As in `attention_maps`, with images as its only input.
        images: Paths of at least one image file. The files are read with the model's evaluation transform.
        path: Path of the .html file to write. It replaces an existing file. If writing fails, the old file is kept.
        top: Int, the maximum number of classes to show.
        readout: As in `attention_rollout`.
        title: The page's title. The default contains the model's name.
        notes: Text to show before the model's summary, for example from `keras_vit.profile`.

    Raises:
        FileNotFoundError: If an image or the folder of `path` does not exist.
        ImportError: If matplotlib is not installed.
        ValueError: As in `attention_maps`, or if `images` is empty, a file is not an image, or `path` does not end in
            .html or .htm.

    Example:
    >>> model = keras_vit.from_pretrained("ViT-B_16-224.npz")  # doctest: +SKIP
    >>> keras_vit.inspection.write_report(model, ["cat.jpg"], "report.html")  # doctest: +SKIP
    """
    path = Path(arguments.path("path", path))
    images = [arguments.path("images", image) for image in arguments.several("images", images)]
    arguments.positive_int("top", top)
    arguments.each(arguments.text, title=title or "", notes=notes)
    if path.suffix.lower() not in (".html", ".htm"):
        raise arguments.invalid("path", "a .html file", str(path))
    if not images:
        raise ValueError("Expected `images` to hold at least one path. Received: none")
    taps = AttentionTaps(model, readout)
    title = html.escape(title or f"What {model.name} sees")
    # Check the folder of `path` and read the images first, so that errors are raised before the computation starts.
    with replacing(path) as temporary:
        arrays = [read_image(image, model) for image in images]
        body = "\n".join([*_image_sections(taps, images, arrays, top), *_model_sections(model, notes)])
        temporary.write_text(
            f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
            f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n{body}\n</body>\n</html>\n",
            encoding="utf-8",
        )
    return path


def _image_sections(taps, paths, arrays, top):
    model, readout, distances = taps.model, taps.readout, []
    yield "<h2>Images</h2>"
    # Images may have different sizes, so process them one by one.
    pairs = list(zip(paths, arrays, strict=True))
    for path, array in Progress(len(pairs), "image", "images", title="Inspecting images").over(pairs):
        inputs = scaled(array[None], model)
        layout = patch_layout(model, inputs)
        rows, columns = layout.grid_size
        distances.append(attention_distance(model, inputs))
        # Replace bytes of the file name that are not UTF-8.
        yield f"<h3>{html.escape(os.fsencode(os.path.basename(path)).decode(errors='replace'))}</h3>"
        yield f"<p>{array.shape[0]} x {array.shape[1]} pixels after resizing, {rows} x {columns} patches.</p>"
        best = None
        if gives_classes(model):
            (classes,) = classify(model, [path], min(top, model.outputs[0].shape[-1]))
            best = classes[0][1]
            yield _predictions(classes)
        else:
            yield "<p>The model has no single classification output, so no classes are shown.</p>"
        text = "Attention rollout: how much each patch contributes to the input of the classification head. "
        text += "The picture in the middle is darker where the patches contribute less."
        yield _figure(plot_attention_rollout(array[None], attention_rollout(model, inputs, readout=readout)), text)
        if best is not None:
            text = f"Gradient rollout for the class {best}: the attention is weighted by the gradient of this class."
            # Models with quantized attention or with attention_norm have no gradient rollout.
            try:
                rollout = gradient_rollout(model, inputs, readout=readout)
                yield _figure(plot_attention_rollout(array[None], rollout), text)
            except ValueError as error:
                yield f"<p>No gradient rollout: {html.escape(str(error))}</p>"
        text = f"Attention in the last block (index {len(taps.blocks) - 1}), each head on its own scale."
        maps = attention_maps(model, inputs)[0]
        yield _figure(plot_attention_maps(array, maps, grid_size=layout.grid_size), text)
    yield "<h2>Attention distance</h2>"
    text = f"Mean distance to which each head attends, over {len(arrays)} image{'s' if len(arrays) > 1 else ''}."
    yield _figure(plot_attention_distance(np.mean(distances, axis=0)), f"{text} Prefix tokens are left out.")


def _model_sections(model, notes):
    yield "<h2>Position embeddings</h2>"
    if sublayers(model, PositionEmbedding):
        text = "Each tile shows the cosine similarity of one patch's position embedding to those of all patches."
        yield _figure(plot_position_similarity(position_similarity(model)), text)
    else:
        yield "<p>The model has no position embeddings to compare, or only relative ones.</p>"
    yield "<h2>Embedding filters</h2>"
    # A model from `fold_preprocessing` has no filters to show.
    try:
        filters = embedding_filters(model)
        text = f"The first {len(filters)} principal components of the first layer's filters, "
        yield _figure(plot_embedding_filters(filters), f"{text}{filters.shape[1]} x {filters.shape[2]} each.")
    except ValueError as error:
        yield f"<p>No filters: {html.escape(str(error))}</p>"
    yield "<h2>Model</h2>"
    if notes:
        yield f"<pre>{html.escape(notes)}</pre>"
    lines = []
    # `summary` cuts its lines after 80 characters without a terminal, so a larger `line_length` would lose text.
    model.summary(print_fn=lambda line, **kwargs: lines.append(line))
    yield f"<pre>{html.escape(chr(10).join(lines))}</pre>"


def _predictions(classes):
    rows = "".join(
        f'<tr><td>{html.escape(name)}</td><td>{html.escape(code)}</td><td class="number">{p:.1%}</td>'
        f'<td class="bar"><div style="width: {100 * p:.1f}%"></div></td></tr>'
        for code, name, p in classes
    )
    return f"<table><tr><th>class</th><th>id</th><th>probability</th><th></th></tr>{rows}</table>"


def _figure(figure, caption):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    source, caption = base64.b64encode(buffer.getvalue()).decode("ascii"), html.escape(caption)
    picture = f'<img src="data:image/png;base64,{source}" alt="{caption}">'
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"
