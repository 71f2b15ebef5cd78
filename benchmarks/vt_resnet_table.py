"""Compares the parameters and multiply-adds of VT-ResNets with those that their paper states, and writes JSON.

The paper (arXiv 2006.03677) states two figures for R18 and R34: table 2 with a plain recipe, table 8 with another. The
last table splits the costs of the VT modules, beside what the differences of the paper's ablations say: table 5 without
transformers, table 7 without projectors. All are of 224 x 224 images and 1,000 classes.

    PYTHONPATH=. python benchmarks/vt_resnet_table.py
"""

import argparse
import json
import math
from pathlib import Path

import keras

import keras_vit
from keras_vit.console import text_table
from keras_vit.files import replacing
from keras_vit.models.vt_resnet.config import VT_RESNETS

RESULTS = Path(__file__).parent / "results" / "vt_resnet.json"
# (millions of parameters, millions of multiply-adds), which the paper calls FLOPs.
TABLE_2 = {"R18": (11.6, 1579), "R34": (21.8, 3299)}
TABLE_8 = {"R18": (11.7, 1569), "R34": (19.2, 3236), "R50": (21.4, 3412), "R101": (41.5, 7129)}
# The costs in table 2 of the paper, minus the costs in tables 5 and 7.
ABLATIONS = {
    ("R18", "transformer"): (3.1, 51),
    ("R34", "transformer"): (4.7, 77),
    ("R18", "projector"): (2.3, 82),
    ("R34", "projector"): (4.5, 141),
}
PARTS = ("tokenizer", "transformer", "projector")


def measure(variant):
    """Returns the millions of parameters and multiply-adds of a variant, in all and by part of its VT modules."""
    # The costs depend only on shapes.
    with keras.StatelessScope(initialize_variables=False):
        model = keras_vit.VTResNet(variant)
        costs = keras_vit.profile(model)
    found = {"parameters": costs.parameters / 1e6, "multiply_adds": costs.multiply_adds / 1e6}
    modules = [model.get_layer(name) for name in model.config.block_names if name.startswith("vt_")]
    for part in PARTS:
        layers = [getattr(module, part) for module in modules if getattr(module, part) is not None]
        steps = [step for row in costs.rows for step in row.steps if f"/{part}/" in step.name]
        found[part] = {
            "parameters": sum(math.prod(weight.shape) for layer in layers for weight in layer.weights) / 1e6,
            "multiply_adds": sum(step.multiply_adds for step in steps) / 1e6,
        }
    keras.utils.clear_session(free_memory=False)
    return found


def tables(results):
    """Returns the tables as text."""
    unknown = None, None
    rows = []
    for variant, own in results.items():
        rows.append([variant])
        for i, name in enumerate(("parameters", "multiply_adds")):
            rows[-1] += [own[name], *(table.get(variant, unknown)[i] for table in (TABLE_2, TABLE_8))]
    columns = ["model", "parameters (M)", "table 2", "table 8", "multiply-adds (M)", "table 2", "table 8"]
    parts = []
    for variant, own in results.items():
        for part in PARTS:
            paper = ABLATIONS.get((variant, part), unknown)
            parts.append([variant, part, own[part]["parameters"], paper[0], own[part]["multiply_adds"], paper[1]])
    names = ["model", "part", "parameters (M)", "in the paper", "multiply-adds (M)", "in the paper"]
    return "\n\n".join(text_table(*each, decimals=2, missing="-") for each in ((columns, rows), (names, parts)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    out = parser.parse_args().out
    results = {variant: measure(variant) for variant in VT_RESNETS}
    print(tables(results))
    with replacing(out) as temporary:
        Path(temporary).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
