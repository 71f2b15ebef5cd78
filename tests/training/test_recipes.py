import dataclasses

import keras
import numpy as np
import pytest

from keras_vit.data import POLICIES, splits
from keras_vit.models.catalog import FAMILIES
from keras_vit.models.family import build
from keras_vit.models.vit.variants import architecture_name
from keras_vit.models.zoo import resolve
from keras_vit.training import RECIPES, run
from keras_vit.training.settings import lengths, optimizer
from tests.distribution.children import write_images

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
    # One table for both: ImageNet's 20,000 steps of 512 are 8 epochs.
    "finetune": {"learning_rate": 0.01, "epochs": 8, "min_steps": 500, "sweep": (0.001, 0.003, 0.01, 0.03)}
    | {"optimizer": "sgd", "decay": "cosine", "clip": 1.0, "weights": "imagenet21k", "warmup_percent": 10},
    "deit_small": {"batch_size": 1024, "epochs": 300, "learning_rate": 1e-3, "weight_decay": 0.05, "policy": "deit"}
    | {"optimizer": "adamw", "warmup_epochs": 5, "variant": "S/16", "clip": None},
    # arXiv 2106.04803, table 10.
    "coatnet_1": {"batch_size": 4096, "epochs": 300, "learning_rate": 1e-3, "weight_decay": 0.05, "clip": 1.0}
    | {"label_smoothing": 0.1, "warmup_steps": 10_000, "decay": "cosine", "model": {"drop_path_rate": 0.3}},
    "coatnet_imagenet21k": {"epochs": 90, "warmup_epochs": 5, "weight_decay": 0.01, "loss": "sigmoid", "ema": None},
    "coatnet_finetune": {"epochs": 30, "batch_size": 512, "learning_rate": 5e-5, "weight_decay": 1e-8, "ema": 0.9999},
}
SMALL = {"hidden_dim": 12, "num_layers": 1, "num_heads": 3, "mlp_dim": 16}
SMALL_COATNET = {"depths": (1, 1, 1, 1), "widths": (8, 8, 8, 8), "stem_widths": (4, 8), "head_dim": 4}

# The other recipes differ from these only in numbers.
STARTED = ("finetune", "deit_tiny", "pretrain_imagenet21k", "coatnet_0", "lora_flowers17", "finetune_vtab")
STARTED += ("scratch_cifar10", "scratch_fashion_mnist")


@pytest.mark.parametrize("name", PUBLISHED)
def test_recipe_has_the_published_settings(name):
    assert {key: getattr(RECIPES[name], key) for key in PUBLISHED[name]} == PUBLISHED[name]


def test_recipes_describe_their_source():
    for name, row in RECIPES.items():
        assert name == row.name and row.source and row.cost and row.expected and row.policy in POLICIES
        lines = [line.split()[0] for line in row.describe().splitlines()]
        assert lines[:5] == ["name", "source", "command", "cost", "expected"]
        assert len(lines) == len(dataclasses.fields(row)) + 1


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_model_can_be_built(name):
    row = RECIPES[name]
    small = {"num_layers": 1} if row.family == "vit" else {"depths": (1, 1, 1, 1), "widths": (32, 32, 32, 32)}
    arguments = {"image_size": row.image_size, "num_classes": 2, **row.model, **small}
    with keras.StatelessScope(initialize_variables=False):
        model = build(FAMILIES[row.family], row.variant, arguments)
    keras.utils.clear_session(free_memory=False)
    assert model.output_shape == (None, 2)


@pytest.mark.parametrize("name", [name for name, row in RECIPES.items() if row.weights])
def test_recipe_weights_are_published(name):
    row = RECIPES[name]
    published = resolve(architecture_name(row.variant), row.weights)
    assert name not in ("finetune_flowers17", "lora_flowers17") or published.url.endswith("/ViT-B_16-224.npz")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Returns 40 photos in four folders."""
    return write_images(tmp_path_factory.mktemp("recipes"), "abcd", 10, (40, 50))


@pytest.mark.long
@pytest.mark.parametrize("name", STARTED)
def test_recipe_runs_on_a_folder_of_images(name, photos, tmp_path, caplog):
    row = RECIPES[name]
    small = SMALL if row.family == "vit" else SMALL_COATNET
    changes = {f"model.{key}": value for key, value in small.items()} | {"steps": 2, "dtype": "float32"}
    if row.family == "coatnet":
        changes |= {"image_size": 32}
    elif not row.variant.startswith("R"):
        changes |= {"variant": "Ti/8", "image_size": 16}
    # The warm-up of the source is longer than this run.
    changes |= {key: getattr(row, key) for key in ("warmup_steps", "warmup_epochs", "warmup_percent")}
    tried = row.replace({**changes, "batch_size": 8 if row.batch_size else None})
    ran = run(tried, splits(photos, holdout=row.holdout), tmp_path / "run", weights="none", verbose=0)
    assert ran.results["steps"] == 2 and np.isfinite(ran.results["test"]["loss"])
    assert sum("a warm-up shorter than the run" in text for text in caplog.messages) == (not row.warmup_percent)


def test_recipes_have_a_schedule_for_80_images():
    for row in RECIPES.values():
        length = lengths(row.replace({"batch_size": 16}), 64, 16)
        assert 0 <= length.warmup < length.total
        assert optimizer(dataclasses.replace(row, batch_size=16, layer_decay=None), None, *length[:2])


def test_unknown_recipe_is_refused():
    with pytest.raises(ValueError, match="Expected a recipe: finetune, pretrain_imagenet21k.*'nothing'"):
        RECIPES["nothing"]
