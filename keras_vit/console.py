"""Progress bars for long work, text tables, and text that is safe to print."""

import contextlib
import logging
import re
import sys
import time

import keras

from keras_vit import arguments

# A progress bar appears after this many seconds of work.
DELAY = 5.0
# Control characters, line separators, marks that change the direction of text, and surrogates. In file names, Python
# uses surrogates for bytes that are not UTF-8.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text, lines=True):
    """Returns `text` with its control characters escaped as in JSON. With `lines`, line ends and tabs stay."""
    return _CONTROL.sub(lambda c: c[0] if lines and c[0] in "\n\t" else f"\\u{ord(c[0]):04x}", str(text))


def write(text, file=None):
    """Prints `text`, and escapes its control characters and the characters that the stream cannot encode."""
    file = sys.stdout if file is None else file
    encoding = getattr(file, "encoding", None) or "utf-8"
    print(printable(text).encode(encoding, "backslashreplace").decode(encoding), file=file)


def _escape_record(record):
    record.msg, record.args = printable(record.getMessage()), ()
    return True


for _name in ("keras_vit", "keras_vit.data"):
    logging.getLogger(_name).addFilter(_escape_record)


class Progress:
    """Keras' progress bar with a rate, such as images per second. It appears once the work has taken five seconds.

    Args:
        target: The number of steps, or None if it is unknown.
        unit: The name of a step, such as "batch".
        counted: The name of the items that the rate counts, such as "images".
        title: A line to print above the bar.
        verbose: 0 or 1. 0 hides the bar, as `keras.config.disable_interactive_logging()` does.
    """

    def __init__(self, target, unit, counted, *, title=None, verbose=1):
        self.verbose, self.title = arguments.choice("verbose", verbose, (0, 1)), title
        self.rate = f"{counted}/s"
        # Outside of a terminal or notebook, each update prints a new line, so update only every 10 seconds.
        moving = getattr(sys.stdout, "isatty", bool)() or "ipykernel" in sys.modules
        options = {"unit_name": unit, "stateful_metrics": [self.rate], "interval": 0.1 if moving else 10}
        self.bar = keras.utils.Progbar(target, **options)
        self.start, self.shown, self.done, self.count = time.monotonic(), False, 0, 0

    def over(self, items, steps=lambda item: 1, count=None):
        """Yields each item, then adds `steps(item)` to the finished steps and `count(item)` to the counted items."""
        with self:
            for item in items:
                yield item
                self.update(self.done + steps(item), self.count + (count or steps)(item))

    def update(self, done, count=None):
        """Shows that `done` steps are finished. The rate is `count` per second; None: `done`."""
        self.done, self.count = done, done if count is None else count
        if self.verbose and (self.shown or time.monotonic() - self.start >= DELAY):
            if self.title and not self.shown and keras.config.is_interactive_logging_enabled():
                print(printable(self.title), flush=True)
            self.shown = True
            self._draw()

    def _draw(self, **options):
        seconds = max(time.monotonic() - self.start, 1e-6)
        self.bar.update(self.done, [(self.rate, self.count / seconds)], **options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Keras' bar ends its line only when all steps are finished, so end the line of an unfinished bar here.
        if self.shown and (self.bar.target is None or self.done < self.bar.target):
            self._draw(finalize=True)


@contextlib.contextmanager
def silenced(silent=True):
    """Hides progress bars and their titles inside the `with` block if `silent` is True."""
    before = keras.config.is_interactive_logging_enabled()
    if silent:
        keras.config.disable_interactive_logging()
    try:
        yield
    finally:
        if before:
            keras.config.enable_interactive_logging()


def text_table(columns, rows, decimals=4, missing=""):
    """Formats rows as an aligned text table. Floats have `decimals` decimal places, and None becomes `missing`."""

    def text(value):
        if isinstance(value, float):
            return f"{value:,.{decimals}f}"
        if isinstance(value, int) and not isinstance(value, bool):
            return f"{value:,}"
        return missing if value is None else printable(value, lines=False)

    cells = [[printable(column, lines=False) for column in columns], *([text(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = ["<" if any(isinstance(row[i], str) for row in rows) else ">" for i in range(len(widths))]
    form = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    return "\n".join(form.format(*row).rstrip() for row in cells)
