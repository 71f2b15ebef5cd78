"""The papers' training runs, one row each, and what a user may change in them."""

import ast
import dataclasses
import inspect
import types
import typing
from collections.abc import Mapping

from keras_vit.layers import arguments
from keras_vit.models import ViT
from keras_vit.training.schedules import DECAYS

# What fields of their own, the data or `run` decide.
_NOT_FOR_MODEL = {"variant", "image_size", "num_classes", "weights", "include_preprocessing"}
# What is said of a recipe, and changes nothing.
TEXTS = ("source", "cost", "expected")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One training run: the model, the data, the optimizer and how long.

    Args:
        name: What it is called on the command line.
        source: The paper and the place in it, or the file that measured it.
        cost: What the run took there.
        expected: The number that it reached there, or "not measured".
        dataset: The TFDS name of the source's own data.
        train_split: What to train on, in TFDS' words.
        test_split: What to test on, after each epoch and at the end.
        holdout: Share of each class to test on, where a folder has no test images of its own.
        variant: The model, as `keras_vit.ViT` takes it.
        image_size: Pixels of a side, or (height, width).
        model: Other arguments of `keras_vit.ViT`.
        weights: The checkpoint to start from, as `keras_vit.ViT` takes it; None starts from random weights.
        train: "all", "head" (the rest is frozen) or "lora" (low-rank updates and the head).
        lora_rank: The rank of the updates.
        dtype: The policy, "float32", "mixed_bfloat16" or "mixed_float16".
        crop: "pretrain", "finetune", "pad" or "eval" (no crop), of the training images.
        crop_scale: The least share of the area that "pretrain" keeps.
        flip: Whether half of the training images are mirrored.
        policy: The name of the augmentation; see `keras_vit.data.POLICIES`.
        label_smoothing: Share of a label spread over the classes, where the policy has none.
        loss: "softmax", or "sigmoid" for one yes or no a class.
        batch_size: Images a step; with `accumulate`, an update has so many times as many, and all lengths still count
            steps.
        steps: Length in steps; or
        epochs: in passes over the training images.
        optimizer: "adam" (decoupled weight decay, as in the paper), "adamw" (DeiT's) or "sgd".
        learning_rate: The highest.
        sweep: The learning rates among which the source chooses, on images held out; for information.
        weight_decay: On kernels alone; with "sgd" none.
        clip: The largest norm of all gradients together; None for no clipping.
        decay: The schedule after the warm-up: "cosine", "linear", "constant" or "rsqrt".
        warmup_steps: Length of the linear warm-up in steps; or
        warmup_epochs: in passes.
        accumulate: Batches an update.
        ema: Momentum of a moving average of the weights, which takes their place at the end; None for none.
        layer_decay: Factor of the learning rate from a block to the one below it; None for none.
        sam: The radius of sharpness-aware minimization; None for none.

    Raises:
        ValueError: If a field is out of its range, or two contradict each other.

    Example:

    >>> recipe = keras_vit.training.RECIPES["finetune_pets"]
    >>> recipe.batch_size, recipe.steps, recipe.learning_rate
    (512, 500, 0.01)
    """

    name: str
    source: str
    cost: str
    expected: str
    dataset: str
    train_split: str = "train"
    test_split: str = "test"
    holdout: float = 0.2
    variant: str = "B/16"
    image_size: int | tuple[int, int] = 224
    model: Mapping = dataclasses.field(default_factory=dict)
    weights: str | None = None
    train: str = "all"
    lora_rank: int = 8
    dtype: str = "float32"
    crop: str = "pretrain"
    crop_scale: float = 0.05
    flip: bool = True
    policy: str = "none"
    label_smoothing: float = 0.0
    loss: str = "softmax"
    batch_size: int = 512
    steps: int | None = None
    epochs: float | None = None
    optimizer: str = "sgd"
    learning_rate: float = 0.03
    sweep: tuple[float, ...] = ()
    weight_decay: float = 0.0
    clip: float | None = 1.0
    decay: str = "cosine"
    warmup_steps: int = 0
    warmup_epochs: float = 0.0
    accumulate: int = 1
    ema: float | None = None
    layer_decay: float | None = None
    sam: float | None = None

    def __post_init__(self):
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"Expected one of `steps` and `epochs`. Received: {self.steps!r} and {self.epochs!r}")
        if self.warmup_steps and self.warmup_epochs:
            raise ValueError(
                "Expected one of `warmup_steps` and `warmup_epochs`. "
                f"Received: {self.warmup_steps!r} and {self.warmup_epochs!r}"
            )
        for key, allowed in (
            ("train", ("all", "head", "lora")),
            ("loss", ("softmax", "sigmoid")),
            ("optimizer", ("adam", "adamw", "sgd")),
            ("decay", tuple(DECAYS)),
            ("dtype", ("float32", "mixed_bfloat16", "mixed_float16")),
            ("crop", ("pretrain", "finetune", "pad", "eval")),
        ):
            arguments.one_of(key, getattr(self, key), allowed)
        for key in ("batch_size", "accumulate", "learning_rate", "steps", "epochs", "lora_rank", "ema", "layer_decay"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise ValueError(f"Expected `{key}` above 0. Received: {value!r}")
        for key in ("holdout", "crop_scale", "label_smoothing", "ema", "layer_decay"):
            value = getattr(self, key)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"Expected `{key}` from 0 to 1. Received: {value!r}")
        arguments.image_size(self.image_size)
        if self.optimizer == "sgd" and self.weight_decay:
            raise ValueError(f"Expected no `weight_decay` with sgd. Received: {self.weight_decay!r}")
        if self.label_smoothing and (self.loss == "sigmoid" or self.policy == "deit"):
            raise ValueError(
                "Expected no `label_smoothing` with the sigmoid loss, nor with the policy 'deit', which smooths. "
                f"Received: {self.label_smoothing!r}"
            )
        if self.ema and self.layer_decay:
            raise ValueError(f"Expected no `ema` with `layer_decay`. Received: {self.ema!r} and {self.layer_decay!r}")
        known = set(inspect.signature(ViT).parameters) - _NOT_FOR_MODEL
        if unknown := sorted(set(self.model) - known):
            raise ValueError(
                f"Expected arguments of keras_vit.ViT in `model`: {', '.join(sorted(known))}. "
                f"Received: {', '.join(unknown)}"
            )

    @property
    def command(self):
        """The command line that runs it on the source's data."""
        return f"keras-vit train --recipe {self.name} --data {self.dataset}"

    def describe(self):
        """All of it as text, a line a field."""
        rows = [(field.name, getattr(self, field.name)) for field in dataclasses.fields(self)]
        rows.insert(2, ("command", self.command))
        return "\n".join(f"{key:16}{value}" for key, value in rows)

    def replace(self, changes):
        """This recipe with other settings.

        Args:
            changes: Mapping from a field, or from "model." and an argument of `keras_vit.ViT`, to its value, or to
                text that is read as a Python literal. `steps` and `epochs` take each other's place, and so do
                `warmup_steps` and `warmup_epochs`.

        Returns:
            A `Recipe`.

        Raises:
            ValueError: If there is no such field, or the value is of another type.

        Example:

        >>> recipe = keras_vit.training.RECIPES["finetune_cifar"]
        >>> recipe.replace({"learning_rate": "0.01", "model.dropout_rate": 0.1}).model
        {'dropout_rate': 0.1}
        """
        hints = typing.get_type_hints(type(self))
        fields, model = {}, dict(self.model)
        for key, value in changes.items():
            value = _literal(value) if isinstance(value, str) else value
            if key.startswith("model."):
                model[key.removeprefix("model.")] = value
                continue
            if key not in hints or key in ("name", "model"):
                known = ", ".join(k for k in hints if k not in ("name", "model"))
                raise ValueError(f"Expected a setting of a recipe: {known}, or model.ARGUMENT. Received: {key!r}")
            fields[key] = _checked(key, value, hints[key])
        for one, other, none in (("steps", "epochs", None), ("warmup_steps", "warmup_epochs", 0)):
            for new, old in ((one, other), (other, one)):
                if fields.get(new) and old not in fields:
                    fields[old] = none
        return dataclasses.replace(self, **fields, model=model)


def _literal(text):
    """The value that text stands for in Python, or the text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _checked(key, value, hint):
    """The value, of the field's type."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        kind = typing.get_origin(option) or option
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if kind is tuple and isinstance(value, (list, tuple)):
            return tuple(value)
        if isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
            return value
    expected = getattr(hint, "__name__", str(hint))
    raise ValueError(f"Expected `{key}` to be {expected}. Received: {value!r}")


_VIT = "arXiv 2010.11929, appendix B.1, table"
# Resolution 384, batch 512, cosine decay, no weight decay, gradients clipped to norm 1, from ImageNet-21k's weights.
_FINETUNE = Recipe(
    name="finetune",
    source="",
    cost="",
    expected="",
    dataset="",
    image_size=384,
    weights="imagenet21k",
    crop="finetune",
    learning_rate=0.01,
    sweep=(0.001, 0.003, 0.01, 0.03),
    steps=500,
    warmup_steps=50,
)
# 300 epochs, AdamW, strong augmentation, stochastic depth 0.1. The rate is 5e-4 for 512 images.
_DEIT = Recipe(
    name="deit",
    source="arXiv 2012.12877, table 9; the number is of its table 5, the cost of its section 6",
    cost="",
    expected="",
    dataset="imagenet2012",
    test_split="validation",
    policy="deit",
    model={
        "drop_path_rate": 0.1,
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
        "interpolation": "bicubic",
        "crop_fraction": 0.875,
    },
    batch_size=1024,
    epochs=300,
    optimizer="adamw",
    learning_rate=1e-3,
    weight_decay=0.05,
    clip=None,
    warmup_epochs=5,
    crop_scale=0.08,
)

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="pretrain_imagenet21k",
            source=f"{_VIT} 3, and section 4.1; the table has weight decay 0.03 here, the section 0.1 for all; "
            "the data is not in TFDS: give a folder, or a dataset of that name with one label an image",
            cost="230 TPUv3-core-days for L/16 (table 2)",
            expected="ImageNet top-1 0.8397 for B/16, fine-tuned at 384 (table 5)",
            dataset="imagenet21k",
            train_split="full[51200:]",
            test_split="full[:25600]",
            model={"dropout_rate": 0.1, "representation_size": 768},
            batch_size=4096,
            epochs=90,
            optimizer="adam",
            learning_rate=1e-3,
            weight_decay=0.1,
            clip=None,
            decay="linear",
            warmup_steps=10_000,
        ),
        Recipe(
            name="pretrain_imagenet1k",
            source=f"{_VIT} 3",
            cost="not published",
            expected="top-1 0.7791 for B/16, fine-tuned at 384 (table 5)",
            dataset="imagenet2012",
            test_split="validation",
            model={"dropout_rate": 0.1, "representation_size": 768},
            batch_size=4096,
            epochs=300,
            optimizer="adam",
            learning_rate=3e-3,
            weight_decay=0.3,
            warmup_steps=10_000,
        ),
        dataclasses.replace(
            _FINETUNE,
            name="finetune_imagenet",
            source=f"{_VIT} 4; warm-up as in the official code",
            cost="6.5 hours on A100 (official repository, which does not say how many)",
            expected="top-1 0.8397 for B/16 (table 5)",
            dataset="imagenet2012",
            test_split="validation",
            learning_rate=0.03,
            sweep=(0.003, 0.01, 0.03, 0.06),
            steps=20_000,
            warmup_steps=500,
        ),
        dataclasses.replace(
            _FINETUNE,
            name="finetune_cifar",
            source=f"{_VIT} 4; learning rate and warm-up as in the official code",
            cost="2.2 hours on A100 (official repository, which does not say how many)",
            expected="accuracy 0.9895 for B/16 (table 5); on cifar100 0.9167",
            dataset="cifar10",
            learning_rate=0.01,
            steps=10_000,
            warmup_steps=500,
        ),
        dataclasses.replace(
            _FINETUNE,
            name="finetune_pets",
            source=f"{_VIT} 4; the warm-up, a tenth of the steps, is ours",
            cost="not published",
            expected="accuracy 0.9443 for B/16 (table 5)",
            dataset="oxford_iiit_pet",
        ),
        dataclasses.replace(
            _FINETUNE,
            name="finetune_flowers",
            source=f"{_VIT} 4; the warm-up, a tenth of the steps, is ours",
            cost="not published",
            expected="accuracy 0.9938 for B/16 on oxford_flowers102 (table 5)",
            dataset="oxford_flowers102",
        ),
        dataclasses.replace(
            _FINETUNE,
            name="finetune_vtab",
            source=f"{_VIT} 4; one run a task, vtab/caltech101 and so on; the warm-up, a tenth of the steps, is ours",
            cost="not published",
            expected="mean accuracy 0.7272 over the 19 tasks for L/16 (table 2)",
            dataset="vtab/caltech101",
            train_split="train800val200",
            crop="eval",
            flip=False,
            steps=2_500,
            sweep=(),
            warmup_steps=250,
        ),
        dataclasses.replace(
            _DEIT, name="deit_tiny", variant="Ti/16", cost="under 3 days of 4 GPUs", expected="top-1 0.722"
        ),
        dataclasses.replace(
            _DEIT, name="deit_small", variant="S/16", cost="under 3 days of 4 GPUs", expected="top-1 0.798"
        ),
        dataclasses.replace(
            _DEIT, name="deit_base", variant="B/16", cost="53 hours on one node, 37 on two", expected="top-1 0.818"
        ),
        Recipe(
            name="scratch_cifar10",
            source="keras_vit; the tokens of the paper's tutorials for 32 x 32 pixels: also B/3 and B/2",
            cost="not measured",
            expected="not measured",
            dataset="cifar10",
            variant="B/4",
            image_size=32,
            model={"drop_path_rate": 0.1},
            crop="pad",
            policy="light2",
            label_smoothing=0.1,
            batch_size=512,
            epochs=200,
            optimizer="adam",
            learning_rate=1e-3,
            weight_decay=0.1,
            warmup_epochs=10,
        ),
        # From here on the numbers are measured by this project, in benchmarks/results.
        Recipe(
            name="scratch_fashion_mnist",
            source="keras_vit",
            cost="16 minutes of 2 CPU cores (TensorFlow, --set dtype=mixed_bfloat16)",
            expected="test accuracy 0.9035",
            dataset="fashion_mnist",
            variant="R+Ti/16",
            image_size=28,
            model={
                "in_channels": 1,
                "patch_size": 1,
                "width_factor": 0.5,
                "hidden_dim": 128,
                "num_layers": 4,
                "num_heads": 4,
                "mlp_dim": 256,
                "pooling": "gap",
                "position_embedding": "sincos2d",
            },
            crop="eval",
            batch_size=64,
            epochs=12,
            optimizer="adam",
            learning_rate=1.5e-3,
            weight_decay=0.1,
            warmup_epochs=0.5,
        ),
        Recipe(
            name="scratch_cifar10_hybrid",
            source="keras_vit; a small hybrid (arXiv 2010.11929, section 3.1) for a CPU",
            cost="23 minutes of 2 CPU cores (TensorFlow, --set dtype=mixed_bfloat16)",
            expected="test accuracy 0.7100; it was still rising",
            dataset="cifar10",
            variant="R+Ti/16",
            image_size=64,
            model={
                "stages": (1, 1),
                "width_factor": 0.5,
                "patch_size": 1,
                "num_layers": 4,
                "mlp_dim": 384,
                "pooling": "gap",
                "position_embedding": "sincos2d",
            },
            crop="pad",
            label_smoothing=0.1,
            batch_size=128,
            epochs=8,
            optimizer="adam",
            learning_rate=2e-3,
            weight_decay=0.1,
            warmup_epochs=1,
        ),
        Recipe(
            name="finetune_flowers17",
            source="keras_vit; the paper's fine-tuning, shorter and at 224, for 40 images a class ",
            cost="8 minutes of 2 CPU cores (TensorFlow), from ViT-B_16-224.npz",
            expected="test accuracy 0.9985",
            dataset="flowers17",
            holdout=0.5,
            image_size=224,
            weights="imagenet21k+imagenet2012",
            dtype="mixed_bfloat16",
            crop="finetune",
            batch_size=32,
            epochs=2,
            learning_rate=0.01,
            warmup_steps=10,
        ),
        Recipe(
            name="lora_flowers17",
            source="keras_vit; arXiv 2106.09685 on the same data",
            cost="8 minutes of 2 CPU cores (TensorFlow), from ViT-B_16-224.npz",
            expected="test accuracy 0.9985",
            dataset="flowers17",
            holdout=0.5,
            image_size=224,
            weights="imagenet21k+imagenet2012",
            train="lora",
            dtype="mixed_bfloat16",
            crop="finetune",
            batch_size=32,
            epochs=2,
            optimizer="adamw",
            learning_rate=1e-3,
            warmup_steps=10,
        ),
    )
}


def recipe(name):
    """Returns the recipe of a name, one of `RECIPES`.

    Raises:
        ValueError: If there is none.

    Example:

    >>> recipe("finetune_vtab").steps
    2500
    """
    if name not in RECIPES:
        raise ValueError(f"Expected a recipe: {', '.join(RECIPES)}. Received: {name!r}")
    return RECIPES[name]
