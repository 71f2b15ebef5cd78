import logging
import re
from collections import defaultdict
from collections.abc import Mapping

logger = logging.getLogger("keras_vit.data")


class BrokenImages(Mapping):
    """The images that a dataset passed over since they do not decode: a mapping from names to reasons.

    It fills while the dataset is read. At the end of each epoch a warning of the logger `keras_vit.data` counts and
    names those of the epoch; `repr` shows the last.

    Args:
        order: Function from an epoch's number to its records {"name", "image"} in order, each once.
        load: Function of a record that raises what is wrong with it.
        num_images: Integer, images of an epoch.
        repeats: Integer, how many times each comes in a row.
        start: (epoch, position) of the first image.
        batch_size: Integer, below which a batch is an epoch's last; 0 where batches go on across epochs.
        shown: Integer, how many names the warning holds.
    """

    def __init__(self, order, load, num_images, repeats=1, start=(0, 0), batch_size=0, shown=20):
        self._order, self._load, self._num_images, self._repeats = order, load, num_images, repeats
        self._shown, self._reasons, self._summary = shown, {}, "no broken images so far"
        # By epoch: the position that should come next, and those that did not come.
        self._next, self._gaps, self._ended = defaultdict(int, [start]), defaultdict(set), set()
        self._batch_size = batch_size

    def check(self, records, load):
        """Raises if no image decodes at all, which would else be noticed when nothing is trained on."""
        reasons = []
        for record in records:
            reason = _reason(load, record)
            if reason is None:
                return
            reasons.append(f"{record['name'].numpy().decode(errors='replace')}: {reason}")
        raise ValueError(f"Expected images that decode. Received: {len(reasons)} that do not. {reasons[0]}")

    def arrived(self, epochs, positions):
        """Notes which positions of which epochs are in a batch; they come in order."""
        for epoch in sorted(set(epochs.tolist())):
            present = positions[epochs == epoch]
            expected, last = self._next[epoch], int(present[-1])
            if last + 1 - expected != len(present):
                self._gaps[epoch].update(set(range(expected, last + 1)) - set(present.tolist()))
            self._next[epoch] = last + 1
            if last + 1 == self._num_images * self._repeats or len(positions) < self._batch_size:
                self.end(epoch)
        # Where batches go on across epochs and the last images are broken, only the next epoch tells.
        for epoch in [e for e in self._next if e < epochs[-1] and not self._batch_size]:
            self.end(epoch)
        return positions[-1]

    def end(self, epoch):
        """Finds the names of an epoch's missing records, and warns of them."""
        if epoch in self._ended:
            return
        self._ended.add(epoch)
        size = self._num_images * self._repeats
        missing = self._gaps.pop(epoch, set()) | set(range(self._next.pop(epoch, 0), size))
        gaps, names = {position // self._repeats for position in missing}, []
        last = max(gaps, default=-1)
        for position, record in zip(range(last + 1), self._order(epoch), strict=False):
            if position in gaps:
                names.append(record["name"].numpy().decode(errors="replace"))
                if names[-1] not in self._reasons:
                    self._reasons[names[-1]] = _reason(self._load, record) or "it failed once, and decodes now"
        if names:
            lines = [f"  {name}: {self._reasons[name]}" for name in sorted(names)]
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
