"""The result of loading weights: a report or an error."""

import logging
import math
import os
from dataclasses import dataclass, field

from keras_vit.console import printable

logger = logging.getLogger("keras_vit")
# The reason in a report for a skipped key that is not a weight, such as an optimizer's state.
NO_WEIGHTS = "holds no weights of the model"


@dataclass
class LoadReport:
    """The result of loading a file: what happened to each weight of the file and the model. `print` shows it as text.

    Args:
        path: Path of the file.
        source: Name of the code base that uses the file's format.
        model: Name of the model.
        loaded: Dict from weight path to shape.
        resized: Dict from the path of a resized weight (positions or patches) to a text with both sizes.
        adapted: Dict from weight path to text, for weights with another number of channels or tokens in the file. The
            text has both numbers.
        skipped: Dict from each unused key of the file to the reason.
        kept: Dict with the path of each weight that was not loaded. The value is "zero" if the weight was set to 0, and
            otherwise "unchanged".
        assumed: Dict with each setting that the file does not contain, and the value that `from_pretrained` used.
        unchecked: Dict with each file whose damage would not be noticed, because it has neither a SHA-256 nor
            checksums. The value is the remedy.

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
    unchecked: dict = field(default_factory=dict)

    def __str__(self):
        count = sum(math.prod(shape) for shape in self.loaded.values())
        lines = [
            f"Loaded {os.path.basename(self.path)} (source {self.source!r}) into {self.model}:",
            f"  loaded   {len(self.loaded)} weights, {count:,} parameters",
        ]
        for title in ("resized", "adapted", "skipped", "kept", "assumed", "unchecked"):
            lines += [f"  {title:<8} {key}: {what}" for key, what in self._shown(getattr(self, title)).items()]
        return printable("\n".join(lines))

    @staticmethod
    def _shown(outcomes):
        """Returns {key: outcome} to print. If 4 or more keys hold no weights, joins these keys into one line."""
        without = [key for key, what in outcomes.items() if what == NO_WEIGHTS]
        if len(without) < 4:
            return outcomes
        others = {key: what for key, what in outcomes.items() if what != NO_WEIGHTS}
        return {**others, f"{len(without)} keys, such as {without[-1]}": NO_WEIGHTS}

    def log(self):
        """Logs the report to the logger "keras_vit": as info if there is nothing to check, otherwise as a warning.

        It is a warning if model and file differ, if a setting was assumed, or if damage would remain unnoticed.
        """
        left_out = any(reason != NO_WEIGHTS for reason in self.skipped.values())
        differs = left_out or self.resized or self.adapted or self.kept or self.assumed or self.unchecked
        logger.log(logging.WARNING if differs else logging.INFO, "%s", self)


class WeightsMismatchError(ValueError):
    """A file does not fit a model. The model is unchanged.

    Attributes:
        unexpected: The file's keys that have no place in the model.
        missing: The model's weights that are not in the file.
        mismatched: Dict from the file's keys to (shape in the file, shape needed).
    """

    _SHOWN = 12

    def __init__(self, path, model, there, here, unexpected, missing, mismatched, hints=()):
        self.unexpected, self.missing, self.mismatched = list(unexpected), list(missing), dict(mismatched)
        pairs = {name: (size, here.sizes.get(name)) for name, size in there.sizes.items()}
        differing = [name for name, (a, b) in pairs.items() if a != b and None not in (a, b)]
        shapes = [f"{key}: {there} in the file, {needed} needed" for key, (there, needed) in self.mismatched.items()]
        lines = [
            f"{os.fspath(path)!r} does not fit model {model!r}. Nothing was loaded.",
            f"  The file:  {there.description}.",
            f"  The model: {here.description}.",
            *([f"  They differ in {', '.join(differing)}."] if differing else []),
            *self._listed("In the file, but not in the model", self.unexpected),
            *self._listed("In the model, but not in the file", self.missing),
            *self._listed("With another shape", shapes),
            *(f"  {hint}" for hint in hints),
            '  To leave a layer out on purpose, pass skip=("its name",) to load_weights.',
        ]
        super().__init__(printable("\n".join(lines)))

    def _listed(self, title, names):
        if not names:
            return
        yield f"  {title} ({len(names)}):"
        yield from (f"    {name}" for name in names[: self._SHOWN])
        if len(names) > self._SHOWN:
            yield f"    ... and {len(names) - self._SHOWN} more"
