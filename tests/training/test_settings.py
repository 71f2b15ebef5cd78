import pytest

from keras_vit.training import recipe


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
