"""What a look at a model and its data found, and how it is shown."""

import dataclasses

import keras

from keras_vit.training.costs import size_text, time_text


@dataclasses.dataclass(frozen=True)
class Findings:
    """What a training will be. `print(result)` shows it on one screen; None is what is not known.

    Args:
        model: String, the model's name.
        num_images: Int, the training images.
        num_classes: Int, the model's outputs.
        class_names: The classes' names, a tuple, which may be empty.
        images_per_class: Ints, a tuple; of the whole data where `counted_all`, else of the batches looked at.
        counted_all: Bool.
        batch_shape: The shape of a batch of images.
        values: (lowest, highest) of the images looked at.
        expected_values: (lowest, highest) that the model takes.
        labels: String, what the labels are.
        loss: String, the loss, as compiled.
        initial_loss: Float, of a batch, before training.
        chance_loss: Float, the logarithm of `num_classes`, which a new head's loss of one class an image is near.
        trainable: Int, parameters that are trained.
        frozen: Int, parameters that are not.
        steps: Int, of the whole training.
        memory: Int, bytes of weights, gradients, optimizer and a batch's activations, estimated from shapes.
        seconds: Float, of the whole training, estimated from the time of a batch without training.
        out: String, the folder.
        checkpoint: Int, bytes of one checkpoint.
        free_disk: Int, bytes of the disk that the folder is on.
        warnings: The texts of what may be meant, a tuple.
    """

    model: str
    num_images: int | None
    num_classes: int | None
    class_names: tuple
    images_per_class: tuple | None
    counted_all: bool
    batch_shape: tuple | None
    values: tuple | None
    expected_values: tuple | None
    labels: str | None
    loss: str | None
    initial_loss: float | None
    chance_loss: float | None
    trainable: int
    frozen: int
    steps: int | None
    memory: int | None
    seconds: float | None
    out: str | None
    checkpoint: int
    free_disk: int | None
    warnings: tuple

    def __str__(self):
        unknown = "not known"
        rows = [("data", f"{self.num_images or 'an unknown number of'} images{self._classes()}")]
        if self.images_per_class:
            shown = [
                f"{self.class_names[i] if i < len(self.class_names) else i} {count}"
                for i, count in enumerate(self.images_per_class[:6])
            ]
            more = ", ..." if len(self.images_per_class) > 6 else ""
            rows.append(("", f"{', '.join(shown)}{more}{'' if self.counted_all else ', in the batches looked at'}"))
        if self.batch_shape:
            takes = "" if self.expected_values is None else "; the model takes {:.4g} to {:.4g}"
            takes = takes.format(*(self.expected_values or ()))
            values = "" if self.values is None else " of {:.4g} to {:.4g}".format(*self.values)
            rows.append(("a batch", f"{' x '.join(map(str, self.batch_shape))}{values}{takes}"))
        rows.append(("labels", self.labels or unknown))
        loss = self.loss or "not compiled"
        if self.initial_loss is not None:
            loss += f", {self.initial_loss:.4g} before training"
            loss += f"; that of chance is {self.chance_loss:.4g}" if self.chance_loss else ""
        rows.append(("loss", loss))
        rows.append(("parameters", f"{self.trainable:,} trained, {self.frozen:,} frozen"))
        rows.append(("steps", f"{self.steps:,}" if self.steps else unknown))
        rows.append(("memory", f"about {size_text(self.memory)}, by the layers' shapes" if self.memory else unknown))
        guess = f"about {time_text(self.seconds)}, three times that of batches without training"
        rows.append(("time", guess if self.seconds else unknown))
        if self.out is not None:
            rows.append(
                ("folder", f"{self.out}, {size_text(self.checkpoint)} a checkpoint, {size_text(self.free_disk)} free")
            )
        lines = [f"{self.model} on {keras.backend.backend()}", *(f"  {name:12}{text}" for name, text in rows)]
        return "\n".join(line[:160] for line in lines)

    def _classes(self):
        return "" if self.num_classes is None else f", {self.num_classes} outputs"
