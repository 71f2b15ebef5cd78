import logging
import re
from collections.abc import Mapping

import numpy as np

logger = logging.getLogger("keras_vit.data")


class BrokenImages(Mapping):
    """The images that a dataset passed over since they do not decode: a mapping from names to reasons.

    It fills with the batches that are read. When the last batch of an epoch was read, a warning of the logger
    `keras_vit.data` counts and names those of the epoch; `repr` shows the last.

    Args:
        load: Function of a record {"name", "image"} that raises what is wrong with it.
        num_images: Integer, different images of an epoch.
        repeats: Integer, how many times each comes in a row.
        shown: Integer, how many names the warning holds.
    """

    def __init__(self, load, num_images, repeats=1, shown=20):
        self._load, self._num_images, self._repeats, self._shown = load, num_images, repeats, shown
        self._reasons, self._summary = {}, "no broken images so far"

    def first_sound(self, records, load):
        """The first of the records that `load` does not raise for.

        Raises:
            ValueError: If none does, which would else be noticed when nothing is trained on.
        """
        reasons = []
        for record in records:
            reason = _reason(load, record)
            if reason is None:
                return record
            reasons.append(f"{_text(record['name'].numpy())}: {reason}")
        raise ValueError(f"Expected images that decode. Received: {len(reasons)} that do not. {reasons[0]}")

    def note(self, earlier, earlier_names, indices, names, images, done):
        """Notes the broken images of a batch, and warns of those of the epochs that ended with it.

        What an iteration has met so far comes in and goes out, so that one knows nothing of another.

        Args:
            earlier: Integer array, the indices of those of the unfinished epochs that were noted before.
            earlier_names: Array of bytes, their names.
            indices: Integer array, those of this batch, counted through all epochs.
            names: Array of bytes, their names.
            images: Array of bytes, what they are loaded from.
            done: Integer, the index that the epochs which ended lie below.

        Returns:
            (indices, names) of those of the unfinished epochs.
        """
        for name, image in zip(names, images, strict=True):
            if _text(name) not in self._reasons:
                reason = _reason(self._load, {"name": name, "image": image})
                self._reasons[_text(name)] = reason or "it failed once, and decodes now"
        indices, names = np.concatenate([earlier, indices]), np.concatenate([earlier_names, names])
        over = indices < done
        # Copies of an image count once.
        numbers = indices // self._repeats
        for epoch in np.unique(numbers[over] // self._num_images):
            chosen = over & (numbers // self._num_images == epoch)
            self._warn(sorted(dict(zip(numbers[chosen], map(_text, names[chosen]), strict=True)).values()))
        return indices[~over], names[~over]

    def _warn(self, names):
        lines = [f"  {name}: {self._reasons[name]}" for name in names]
        if len(lines) > self._shown:
            lines[self._shown :] = [f"  ... and {len(lines) - self._shown} more"]
        count = f"{len(names)} of {self._num_images} images were skipped in this epoch, since they do not decode:"
        self._summary = "\n".join([count, *lines])
        logger.warning("%s", self._summary)

    def __getitem__(self, name):
        return self._reasons[name]

    def __iter__(self):
        return iter(self._reasons)

    def __len__(self):
        return len(self._reasons)

    def __repr__(self):
        return f"<BrokenImages: {self._summary}>"


def _text(name):
    return name.decode(errors="replace")


def _reason(load, record):
    """What is wrong with a record; None if nothing is."""
    try:
        load(record)
    except Exception as error:  # Whatever it was, training goes on.
        text = getattr(error, "message", None) or str(error)
        # What TensorFlow puts around a message.
        text = re.sub(r"\{\{.*?\}\}|\[Op:.*?\]|name: *$|^Expected '.*?' to be true. Summarized data: ", "", text)
        return " ".join(re.sub(r"b'(Expected[^']*|x)'", r"\1", text).split())[:200]
    return None
