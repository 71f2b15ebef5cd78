"""Recognises Keras' classification losses, and compares them with the outputs of a model."""

from typing import NamedTuple

import keras

from keras_vit.models.graph import activation_behind

# {classification loss: kind of its labels}. "sparse" labels are integers, "one_hot" labels are a distribution over the
# classes, and "multi_hot" labels are a number from 0 to 1 for each class.
_KINDS = {
    "SparseCategoricalCrossentropy": "sparse",
    "CategoricalCrossentropy": "one_hot",
    "CategoricalFocalCrossentropy": "one_hot",
    "BinaryCrossentropy": "multi_hot",
    "BinaryFocalCrossentropy": "multi_hot",
}
_CLASSES = {name.lower(): name for name in _KINDS}


class Loss(NamedTuple):
    """A classification loss of Keras."""

    name: str  # name of the class or function
    kind: str  # one of the values of `_KINDS`
    from_logits: bool  # False if the loss expects probabilities
    ignored: int | None = None  # the label to ignore
    keras_class: str | None = None  # the name of the matching class in `keras.losses`, for errors


def names_of_loss(loss):
    """Returns a list of names: the name of a loss function, or the names of a loss' class and its base classes."""
    loss = keras.losses.get(loss) if isinstance(loss, str) else loss
    return [loss.__name__] if hasattr(loss, "__name__") else [owner.__name__ for owner in type(loss).__mro__]


def recognised_loss(loss):
    """Returns a `Loss` for the argument `loss` of `compile`; None if it is not a classification loss of Keras."""
    loss = keras.losses.get(loss) if isinstance(loss, str) else loss
    # A user's function may have the same name as a loss of Keras but expect other arguments, so do not recognise it.
    if hasattr(loss, "__name__") and not loss.__module__.startswith("keras."):
        return None
    # Subclasses of Keras' losses expect the same labels.
    names = names_of_loss(loss)
    owner = next((_CLASSES[key] for name in names if (key := name.lower().replace("_", "")) in _CLASSES), None)
    if owner is None:
        return None
    from_logits = bool(getattr(loss, "from_logits", False))
    return Loss(names[0].lstrip("_"), _KINDS[owner], from_logits, getattr(loss, "ignore_class", None), owner)


def loss_mismatch(loss, probable):
    """Returns the error message for a `Loss` that does not fit the outputs of a model.

    If `probable` is True, the model outputs probabilities and the loss expects logits. If False, the reverse.
    """
    line = f"loss=keras.losses.{loss.keras_class}({'' if probable else 'from_logits=True'})"
    remedy = f"{line}, or build the model with classifier_activation=None" if probable else line
    return (
        f"Expected a loss with from_logits={not probable}, since the model gives "
        f"{'probabilities' if probable else 'logits'}. Received: {loss.name} with from_logits={loss.from_logits}. "
        f"Write {remedy}."
    )


def check_loss(model, args, kwargs):
    """Raises ValueError if a loss in the arguments of `compile` does not fit the activation of the model's head.

    The check covers Keras' classification losses if the output is computed by a dense layer, a softmax or a sigmoid.
    """
    losses = kwargs.get("loss", args[1] if len(args) > 1 else None)
    outputs = getattr(model, "outputs", None) or []
    if isinstance(losses, dict):
        named = dict(zip(model.output_names, outputs, strict=True)) if outputs else {}
        # If the model returns a dict, the keys of the dict name the outputs.
        named |= model.output if outputs and isinstance(model.output, dict) else {}
        pairs = [(named[name], loss) for name, loss in losses.items() if name in named]
    elif isinstance(losses, (list, tuple)):
        pairs = zip(outputs, losses, strict=False)
    else:
        pairs = [(output, losses) for output in outputs]
    for output, part in pairs:
        loss, activation = recognised_loss(part), activation_behind(output, ("softmax", "sigmoid", "linear"))
        if loss and activation and loss.from_logits != (activation == "linear"):
            raise ValueError(loss_mismatch(loss, activation != "linear"))
