"""The report of a load, and the error of one that was refused."""

import logging
import math
import os
from dataclasses import dataclass, field

from keras_vit.weights.model import describe_sizes

logger = logging.getLogger("keras_vit")
# The reason why keys such as an optimizer's state are left out, with which nothing is lost.
NO_WEIGHTS = "holds no weights of the model"


@dataclass
class LoadReport:
    """The result for each weight of the file and of the model, to be printed.

    Attributes:
        path: Path of the file.
        source: Name of the code base whose format the file has.
        model: Name of the model.
        loaded: Dict from each weight's path in the model to its shape.
        resized: Dict from a weight's path to how its position embeddings were resized.
        adapted: Dict from a weight's path to how its kernel was adapted to other channels.
        skipped: Dict from the file's keys that were left out to the reason.
        kept: Dict from the model's weights that were not loaded to what they hold instead.
        assumed: Dict from the settings that neither file nor caller told `from_pretrained` to the values it took.

    Example:

    >>> report = keras_vit.LoadReport("ViT-B_16.npz", "official", "vit_B16", loaded={"head/bias": (10,)})
    >>> print(report)
    Loaded ViT-B_16.npz (source 'official') into vit_B16:
      loaded   1 weights, 10 parameters
    """

    path: str
    source: str
    model: str
    loaded: dict = field(default_factory=dict)
    resized: dict = field(default_factory=dict)
    adapted: dict = field(default_factory=dict)
    skipped: dict = field(default_factory=dict)
    kept: dict = field(default_factory=dict)
    assumed: dict = field(default_factory=dict)

    def __str__(self):
        count = sum(math.prod(shape) for shape in self.loaded.values())
        lines = [
            f"Loaded {os.path.basename(self.path)} (source {self.source!r}) into {self.model}:",
            f"  loaded   {len(self.loaded)} weights, {count:,} parameters",
        ]
        for title in ("resized", "adapted", "skipped", "kept", "assumed"):
            lines += [f"  {title:<8} {key}: {what}" for key, what in getattr(self, title).items()]
        return "\n".join(lines)

    def log(self):
        """Logs itself to "keras_vit": as a warning if the model differs from the file's, else as information."""
        left_out = any(reason != NO_WEIGHTS for reason in self.skipped.values())
        differs = left_out or self.resized or self.adapted or self.kept or self.assumed
        logger.log(logging.WARNING if differs else logging.INFO, "%s", self)


class WeightsMismatchError(ValueError):
    """A file does not fit a model. The model is unchanged.

    Attributes:
        unexpected: The file's keys that the model has no place for.
        missing: The model's weights that the file does not hold.
        mismatched: Dict from the file's keys to (its shape there, the shape that the model needs).
    """

    _SHOWN = 12

    def __init__(self, path, model, file_sizes, model_sizes, unexpected, missing, mismatched, hints=()):
        self.unexpected, self.missing, self.mismatched = list(unexpected), list(missing), dict(mismatched)
        shapes = [f"{key}: {there} in the file, {needed} needed" for key, (there, needed) in self.mismatched.items()]
        lines = [
            f"{os.fspath(path)!r} does not fit model {model!r}. Nothing was loaded.",
            f"  The file:  {describe_sizes(file_sizes)}.",
            f"  The model: {describe_sizes(model_sizes)}.",
            *_differing(file_sizes, model_sizes),
            *self._listed("In the file, but not in the model", self.unexpected),
            *self._listed("In the model, but not in the file", self.missing),
            *self._listed("With another shape", shapes),
            *(f"  {hint}" for hint in hints),
            '  To leave a layer out on purpose, pass skip=("its name",) to load_weights.',
        ]
        super().__init__("\n".join(lines))

    def _listed(self, title, names):
        if not names:
            return
        yield f"  {title} ({len(names)}):"
        yield from (f"    {name}" for name in names[: self._SHOWN])
        if len(names) > self._SHOWN:
            yield f"    ... and {len(names) - self._SHOWN} more"


def _differing(there, here):
    """One line with the sizes that differ, of those that are known on both sides."""
    names = [name for name, size in there.items() if None not in (size, here[name]) and size != here[name]]
    return [f"  They differ in {', '.join(names)}."] if names else []
