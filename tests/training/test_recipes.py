import dataclasses

import pytest

from keras_vit.data import POLICIES
from keras_vit.models import ViT
from keras_vit.training import RECIPES, recipe

# arXiv 2010.11929, tables 3 and 4 and section 4.1; arXiv 2012.12877, table 9.
PUBLISHED = {
    "pretrain_imagenet21k": {"batch_size": 4096, "epochs": 90, "learning_rate": 1e-3, "weight_decay": 0.1}
    | {"optimizer": "adam", "decay": "linear", "warmup_steps": 10_000}
    | {"model": {"dropout_rate": 0.1, "representation_size": 768}},
    "finetune_vtab": {"batch_size": 512, "steps": 2_500, "learning_rate": 0.01, "weight_decay": 0.0, "clip": 1.0}
    | {"flip": False, "crop": "eval", "image_size": 384},
    "pretrain_imagenet1k": {"batch_size": 4096, "epochs": 300, "learning_rate": 3e-3, "weight_decay": 0.3}
    | {"optimizer": "adam", "decay": "cosine", "warmup_steps": 10_000, "clip": 1.0},
    "finetune_imagenet": {"batch_size": 512, "steps": 20_000, "sweep": (0.003, 0.01, 0.03, 0.06), "image_size": 384},
    "finetune_cifar": {"batch_size": 512, "steps": 10_000, "sweep": (0.001, 0.003, 0.01, 0.03), "image_size": 384},
    "finetune_pets": {"batch_size": 512, "steps": 500, "sweep": (0.001, 0.003, 0.01, 0.03), "optimizer": "sgd"},
    "finetune_flowers": {"batch_size": 512, "steps": 500, "sweep": (0.001, 0.003, 0.01, 0.03), "decay": "cosine"},
    "deit_small": {"batch_size": 1024, "epochs": 300, "learning_rate": 1e-3, "weight_decay": 0.05, "policy": "deit"}
    | {"optimizer": "adamw", "warmup_epochs": 5, "variant": "S/16", "clip": None},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_settings_are_the_published_ones(name):
    assert {key: getattr(RECIPES[name], key) for key in PUBLISHED[name]} == PUBLISHED[name]


def test_each_says_where_it_comes_from_and_can_be_built():
    for name, row in RECIPES.items():
        assert name == row.name and row.source and row.cost and row.expected and row.policy in POLICIES
        lines = [line.split()[0] for line in row.describe().splitlines()]
        assert lines[:5] == ["name", "source", "command", "cost", "expected"]
        assert len(lines) == len(dataclasses.fields(row)) + 1


@pytest.mark.parametrize("name", RECIPES)
def test_each_model_can_be_built(name):
    row = RECIPES[name]
    model = ViT(row.variant, **{"image_size": row.image_size, "num_classes": 2, **row.model, "num_layers": 1})
    assert model.output_shape == (None, 2)


def test_settings_can_be_changed_from_text():
    changed = recipe("finetune_cifar").replace(
        {"learning_rate": "0.01", "image_size": "(32, 48)", "variant": "S/4", "model.dropout_rate": "0.1", "epochs": 3}
    )
    assert (changed.learning_rate, changed.image_size, changed.variant) == (0.01, (32, 48), "S/4")
    assert changed.model == {"dropout_rate": 0.1} and (changed.epochs, changed.steps) == (3.0, None)
    assert changed.name == "finetune_cifar" and recipe("finetune_cifar").model == {}
    assert recipe("deit_small").replace({"warmup_steps": "7"}).warmup_epochs == 0


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"lr": 1}, "Expected a setting of a recipe: source, .*'lr'"),
        ({"batch_size": "many"}, "Expected `batch_size` to be int. Received: 'many'"),
        ({"batch_size": 0}, "above 0"),
        ({"clip": "yes"}, "Expected `clip` to be float | None"),
        ({"optimizer": "lion"}, "`optimizer`"),
        ({"weight_decay": 0.1}, "no `weight_decay` with sgd"),
        ({"steps": 3, "epochs": 3}, "Expected one of `steps` and `epochs`"),
        ({"flip": 1}, "Expected `flip` to be bool"),
        ({"image_size": "(8,)"}, "`image_size`"),
        ({"decay": "step"}, "`decay`"),
        ({"ema": 0.9, "layer_decay": 0.9}, "no `ema` with `layer_decay`"),
        ({"policy": "deit", "label_smoothing": 0.1}, "no `label_smoothing`"),
        ({"model.dropout": 0.1}, "arguments of keras_vit.ViT in `model`: .*dropout_rate.* Received: dropout"),
        ({"model.num_classes": 5}, "Received: num_classes"),
        ({"model.num_layers": "{[]:1}", "sweep": "{[]:1}"}, "Expected `sweep` to be"),
    ],
)
def test_wrong_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        recipe("finetune_cifar").replace(changes)


def test_unknown_recipe():
    with pytest.raises(ValueError, match="Expected a recipe: pretrain_imagenet21k.*'nothing'"):
        recipe("nothing")
