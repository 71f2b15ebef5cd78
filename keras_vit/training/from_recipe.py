"""The parts of a training run that a recipe says: model, optimizer, loss and metrics."""

import keras

from keras_vit.models import ViT
from keras_vit.models.preprocessing import normalization_of
from keras_vit.training.freezing import freeze
from keras_vit.training.layer_decay import LayerDecay, layer_multipliers
from keras_vit.training.lora import enable_lora
from keras_vit.training.optimizers import adam, adamw, sgd
from keras_vit.training.schedules import WarmupDecay


def build(recipe, num_classes, weights=None, class_names=None):
    """Builds a recipe's model, with what it does not train frozen; it takes raw images of 0..255.

    Args:
        recipe: A `Recipe`.
        num_classes: Int.
        weights: As for `keras_vit.ViT`.
        class_names: The names of the classes, which the model carries, or None.

    Returns:
        A `keras.Model`, not compiled.
    """
    model = ViT(
        recipe.variant,
        **{
            "image_size": recipe.image_size,
            "num_classes": num_classes,
            "weights": weights,
            "class_names": class_names or None,
            "include_preprocessing": True,
            "dtype": recipe.dtype,
            **recipe.model,
        },
    )
    normalization_of(model).multi_label = recipe.loss == "sigmoid"
    if recipe.train == "head":
        freeze(model)
    elif recipe.train == "lora":
        enable_lora(model, recipe.lora_rank)
    return model


def optimizer(recipe, model, total_steps, warmup_steps):
    """Makes a recipe's optimizer.

    Args:
        recipe: A `Recipe`.
        model: The model, for the depths of its layers.
        total_steps: Int.
        warmup_steps: Int.

    Returns:
        A `keras.optimizers.Optimizer`.
    """
    schedule = WarmupDecay(recipe.learning_rate, total_steps, warmup_steps, recipe.decay)
    options = {"global_clipnorm": recipe.clip}
    if recipe.accumulate > 1:
        options["gradient_accumulation_steps"] = recipe.accumulate
    if recipe.ema:
        options |= {"use_ema": True, "ema_momentum": recipe.ema}
    if recipe.optimizer != "sgd":
        options["weight_decay"] = recipe.weight_decay
    made = {"adam": adam, "adamw": adamw, "sgd": sgd}[recipe.optimizer](schedule, **options)
    if recipe.layer_decay:
        made = LayerDecay(made, layer_multipliers(model, recipe.layer_decay))
    return made


def loss(recipe, one_hot):
    """Makes a recipe's loss of logits.

    Args:
        recipe: A `Recipe`.
        one_hot: Bool, whether labels are numbers for each class; integers otherwise.

    Returns:
        A `keras.losses.Loss`.
    """
    if recipe.loss == "sigmoid":
        # Summed over the classes and not averaged, as in the source, so that their number does not change the steps.
        return _SumOverClasses(from_logits=True)
    if one_hot:
        return keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=recipe.label_smoothing)
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@keras.saving.register_keras_serializable(package="keras_vit")
class _SumOverClasses(keras.losses.BinaryCrossentropy):
    """Binary cross-entropy, summed over the classes."""

    def call(self, y_true, y_pred):
        return super().call(y_true, y_pred) * y_pred.shape[-1]


def kind_of_labels(recipe, spec):
    """Finds what a dataset's labels are.

    Args:
        recipe: A `Recipe`.
        spec: The dataset's `element_spec`.

    Returns:
        "int", or "multi_hot" for several labels an image.

    Raises:
        ValueError: If there are no labels, or the recipe's loss is not for them.
    """
    if not isinstance(spec, tuple):
        raise ValueError("Expected images with labels to train and test on. Received: images alone")
    if len(spec[1].shape) == 1:
        return "int"
    if recipe.loss != "sigmoid":
        raise ValueError(f"Expected loss='sigmoid' for images of several labels. Received: loss={recipe.loss!r}")
    return "multi_hot"


def metrics(num_classes, one_hot, kind):
    """Makes the metrics of a classifier.

    Args:
        num_classes: Int.
        one_hot: Bool, whether labels are numbers for each class.
        kind: What `kind_of_labels` returns.

    Returns:
        A list as `compile` takes it.
    """
    if kind == "multi_hot":
        return [
            keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0),
            keras.metrics.AUC(name="auc", multi_label=True, num_labels=num_classes, from_logits=True),
        ]
    wanted = ["accuracy"]
    if num_classes > 10:
        top_5 = keras.metrics.TopKCategoricalAccuracy if one_hot else keras.metrics.SparseTopKCategoricalAccuracy
        wanted.append(top_5(5, name="top_5_accuracy"))
    return wanted
