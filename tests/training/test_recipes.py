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


def test_unknown_recipe():
    with pytest.raises(ValueError, match="Expected a recipe: pretrain_imagenet21k.*'nothing'"):
        recipe("nothing")
