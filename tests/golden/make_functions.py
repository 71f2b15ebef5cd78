"""Makes the small files: results of functions of the official code, DeiT and timm for random arrays.

Needs checkouts of google-research/vision_transformer (commit c6de1e5), google-research/big_vision (commit 0127fb6) and
facebookresearch/deit (commit 7e160fe), and timm (1.0.31), for which an empty torchvision will do:

    pip install flax ml_collections pandas safetensors timm ".[jax,tensorflow,torch]"
    python tests/golden/make_functions.py [--check] vision_transformer big_vision deit [NAME ...]

With --check it writes nothing, and runs the functions on the arrays that are kept.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from making import HERE, arguments, compare

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.peers import peer

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype("float32")


def posembed_resize_official(checkpoint):
    def resize(arrays):
        targets = {"tok_7x7": (12, 5), "gap_14x14": (24,), "tok_14x14": (24,)}
        return {
            f"{name}_to_{side}x{side}": checkpoint.interpolate_posembed(
                arrays[name], side * side + name.startswith("tok"), name.startswith("tok")
            )
            for name, sides in targets.items()
            for side in sides
        }

    inputs = {"tok_7x7": normal(1, 50, 48), "gap_14x14": normal(1, 196, 48), "tok_14x14": normal(1, 197, 32)}
    return inputs, resize


def posembed_resize_bigvision(vit):
    return {"old": normal(1, 49, 32)}, lambda arrays: {
        "new_14x14": vit.resample_posemb(arrays["old"], np.zeros((1, 196, 32)))
    }


def posembed_resize_timm(pos_embed):
    def resize(arrays):
        old = torch.from_numpy(arrays["tok_7x7"])
        return {
            f"tok_7x7_to_{rows}x{columns}": pos_embed.resample_abs_pos_embed(old, [rows, columns]).numpy()
            for rows, columns in ((12, 12), (4, 10))
        }

    return {"tok_7x7": normal(1, 50, 32)}, resize


def deit_distillation_loss(losses):
    def loss(arrays, kind, alpha, tau):
        logits, student, teacher, labels = (
            torch.from_numpy(arrays[name]) for name in ("logits", "dist_logits", "teacher_logits", "labels")
        )
        function = losses.DistillationLoss(torch.nn.functional.cross_entropy, lambda _: teacher, kind, alpha, tau)
        return float(function(None, (logits, student), labels))

    def all_losses(arrays):
        settings = [(kind, alpha, tau) for kind in ("hard", "soft") for tau in (1.0, 3.0) for alpha in (0.1, 0.5)]
        return {f"{kind}_alpha{alpha}_tau{tau}": loss(arrays, kind, alpha, tau) for kind, alpha, tau in settings}

    logits = {name: 2 * normal(6, 10) for name in ("logits", "dist_logits", "teacher_logits")}
    return {**logits, "labels": RNG.integers(10, size=6)}, all_losses


def fewshot_lsr(official):
    def accuracies(arrays):
        cache = official._precompute_cache(arrays["x_train"], arrays["y_train"], 10)
        test = arrays["x_test"], arrays["y_test"]
        return {str(l2): float(official._eig_fewshot_acc_fn(cache, *test, l2)) for l2 in 2.0 ** np.arange(-10, 11, 5)}

    centres, y_train, y_test = 0.3 * normal(10, 96), np.repeat(np.arange(10), 5), np.repeat(np.arange(10), 30)
    inputs = {"y_train": y_train, "y_test": y_test}
    return {**inputs, "x_train": centres[y_train] + normal(50, 96), "x_test": centres[y_test] + normal(300, 96)}, (
        accuracies
    )


def learning_rates(utils):
    """Computes the schedules that the kept file lists. To add a schedule, add its arguments and steps to the file."""
    for name, kept in json.loads((HERE / "lr_schedules_official.json").read_text()).items():
        schedule = utils.create_learning_rate_schedule(**kept["args"])
        yield name, {**kept, "lr": [float(schedule(step)) for step in kept["steps"]]}


def parameter_counts(timm):
    """Counts the models whose names are in the kept file. To add a model, add its name to the file."""
    for name in json.loads((HERE / "param_counts_timm.json").read_text()):
        # The largest models have billions of parameters, so only shapes are computed.
        with torch.device("meta"):
            yield name, sum(x.numel() for x in timm.create_model(name, num_classes=1000).parameters())


def numbers(value):
    return value["lr"] if isinstance(value, dict) else value


def main():
    args = arguments("vision_transformer", "big_vision", "deit")
    sys.path[:0] = map(str, (args.vision_transformer, args.big_vision, args.deit))

    def wanted(name):
        return not args.names or name in args.names

    # A few numbers are written into a file of their own, apart from the arrays.
    for make, source, apart in (
        (posembed_resize_official, "vit_jax.checkpoint", False),
        (posembed_resize_bigvision, "big_vision.models.vit", False),
        (posembed_resize_timm, "timm.layers.pos_embed", False),
        (deit_distillation_loss, "losses", True),
        (fewshot_lsr, "big_vision.evaluators.fewshot_lsr", True),
    ):
        name = make.__name__
        inputs, answers = make(peer(source))
        path = HERE / f"{name}.npz"
        if not wanted(name):
            continue
        if args.check:
            kept = dict(np.load(path))
            arrays = {key: kept.pop(key) for key in inputs}
            compare(name, json.loads(path.with_suffix(".json").read_text()) if apart else kept, answers(arrays))
        elif apart:
            np.savez_compressed(path, **inputs)
            path.with_suffix(".json").write_text(json.dumps(answers(inputs), indent=1))
        else:
            np.savez_compressed(path, **inputs, **answers(inputs))
    for name, make, source in (
        ("lr_schedules_official", learning_rates, "vit_jax.utils"),
        ("param_counts_timm", parameter_counts, "timm"),
    ):
        path = HERE / f"{name}.json"
        if wanted(name):
            kept, found = json.loads(path.read_text()), dict(make(peer(source)))
            if args.check:
                compare(name, *({key: numbers(x) for key, x in each.items()} for each in (kept, found)))
            else:
                path.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
