import io
import logging
import re
import sys

import keras
import pytest

from keras_vit import console
from keras_vit.console import Progress, printable, text_table


class Clock:
    """A clock that only tests move."""

    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(console, "time", clock)
    return clock


def work(clock, seconds, **options):
    for _ in Progress(4, "batch", "images", title="At work", **options).over(range(4), count=lambda item: 10):
        clock.now += seconds


def test_bar_with_rate_appears_after_five_seconds(clock, capsys, monkeypatch):
    work(clock, 1.2)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    bar = keras.utils.Progbar
    monkeypatch.setattr(keras.utils, "Progbar", lambda *args, **options: bar(*args, **{**options, "interval": 0}))
    work(clock, 2.0)
    title, shown = capsys.readouterr().out.split("\n", 1)
    assert title == "At work" and shown.endswith("\n")
    assert re.findall(r"(\d)/4", shown) == ["3", "4"]
    assert re.findall(r"images/s: ([\d.]+)", shown) == ["5.0000", "5.0000"]


def test_verbose_and_interactive_logging_hide_a_bar(clock, capsys):
    work(clock, 9, verbose=0)
    with console.silenced():
        work(clock, 9)
    assert capsys.readouterr().out == "" and keras.config.is_interactive_logging_enabled()
    with console.silenced(False):
        work(clock, 9)
    assert "4/4" in capsys.readouterr().out
    with pytest.raises(ValueError, match="`verbose`. Expected one of 0, 1. Received: 2"):
        Progress(1, "batch", "images", verbose=2)


@pytest.mark.parametrize("target", [None, 4, 3.5])
def test_interrupted_bar_ends_its_line(clock, capsys, target):
    with pytest.raises(KeyError), Progress(target, "MB", "MB") as bar:
        for done in (1.0, 2.0):
            clock.now += 6
            bar.update(done)
        raise KeyError
    shown = capsys.readouterr().out
    assert shown.endswith("\n") and "MB/s: 0.1667" in shown


def test_table_aligns_columns_and_rounds_numbers():
    text = text_table(["name", "x", "ok"], [["a", 1234567, True], ["bb", 0.123456, False], ["c", None, None]], 2, "-")
    assert text.splitlines() == [
        "name          x     ok",
        "a     1,234,567   True",
        "bb         0.12  False",
        "c             -      -",
    ]
    assert text_table(["a", "b"], []) == "a  b"
    assert text_table([], []) == ""


def test_printable_escapes_control_characters():
    assert printable("a\tb\nc é 猫") == "a\tb\nc é 猫"
    assert printable("a\nb\x1b[2J\x9b\u202e\udcff", lines=False) == r"a\u000ab\u001b[2J\u009b\u202e\udcff"
    assert text_table(["a\x1b"], [["b\nc"]]) == "a\\u001b\nb\\u000ac"
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    console.write("cat \x1b é", stream)
    assert stream.buffer.getvalue().split() == [b"cat", b"\\u001b", b"\\xe9"]


@pytest.mark.parametrize("name", ["keras_vit", "keras_vit.data"])
def test_log_messages_are_escaped(name, caplog):
    logging.getLogger(name).warning("%s of %d", "a\x1b", 3)
    assert caplog.messages == [r"a\u001b of 3"]
