import pytest

from keras_vit.training import RECIPES


def test_recipe_replace_parses_text():
    changed = RECIPES["finetune_cifar"].replace(
        {"learning_rate": "0.01", "image_size": "(32, 48)", "variant": "S/4", "model.dropout_rate": "0.1", "epochs": 3}
    )
    assert (changed.learning_rate, changed.image_size, changed.variant) == (0.01, (32, 48), "S/4")
    assert changed.model == {"dropout_rate": 0.1} and (changed.epochs, changed.steps) == (3.0, None)
    assert changed.name == "finetune_cifar" and RECIPES["finetune_cifar"].model == {}
    for changes in ({"warmup_steps": "7"}, {"warmup_percent": "5"}, {"warmup_steps": "0"}):
        assert RECIPES["deit_small"].replace(changes).warmup_epochs == 0
    own = RECIPES["finetune"].replace({"epochs": "3", "warmup_epochs": "0.5"})
    assert (own.epochs, own.min_steps, own.warmup_epochs, own.warmup_percent) == (3, 0, 0.5, 0)
    assert RECIPES["finetune"].replace({"epochs": "3", "min_steps": "9"}).min_steps == 9
    assert RECIPES["finetune"].replace({"batch_size": "8"}).batch_size == 8
    assert RECIPES["finetune"].replace({"warmup_percent": "0"}).warmup_percent == 0
    assert RECIPES["finetune"].command == "keras-vit train --recipe finetune --data FOLDER"


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"lr": 1}, "Expected a setting of a recipe: source, .*'lr'"),
        ({"batch_size": "many"}, "Expected `batch_size` to be int .*None. Received: 'many'"),
        ({"batch_size": 0}, "above 0"),
        ({"weight_decay": 0.1}, "no `weight_decay` with sgd"),
        ({"steps": 3, "epochs": 3}, "Expected one of `steps` and `epochs`"),
        ({"steps": 3, "min_steps": 3}, "Expected `min_steps` only with `epochs`"),
        ({"epochs": 3, "min_steps": -3}, "`min_steps` and a warm-up of 0 or more"),
        ({"warmup_percent": 100}, "less than 100 percent"),
        ({"warmup_steps": 3, "warmup_percent": 3}, "Expected one of `warmup_steps`, `warmup_epochs` and"),
        ({"ema": 0.9, "layer_decay": 0.9}, "no `ema` with `layer_decay`"),
        ({"ema": 1.0}, r"`ema`. Expected a number in \(0, 1\)"),
        ({"policy": "deit", "label_smoothing": 0.1}, "no `label_smoothing`"),
        ({"model.dropout": 0.1}, "arguments of keras_vit.ViT in `model`: .*dropout_rate.* Received: dropout"),
        ({"model.num_classes": 5}, "Received: num_classes"),
        ({"model.num_layers": "{[]:1}", "sweep": "{[]:1}"}, "Expected `sweep` to be"),
    ],
)
def test_recipe_replace_invalid_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        RECIPES["finetune_cifar"].replace(changes)
