import re
import sys

import keras
import pytest

from keras_vit import progress
from keras_vit.progress import Progress


class Clock:
    """Seconds that pass only when a test says so."""

    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def work(clock, seconds, **options):
    for _ in Progress(4, "batch", "images", title="At work", **options).over(range(4), count=lambda item: 10):
        clock.now += seconds


def test_work_of_less_than_five_seconds_shows_nothing(clock, capsys):
    work(clock, 1.2)
    assert capsys.readouterr().out == ""


def test_a_bar_appears_after_five_seconds_with_a_rate(clock, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(progress.keras.utils, "Progbar", every_update)
    work(clock, 2.0)
    title, shown = capsys.readouterr().out.split("\n", 1)
    assert title == "At work" and shown.endswith("\n")
    assert re.findall(r"(\d)/4", shown) == ["3", "4"]
    assert re.findall(r"images/s: ([\d.]+)", shown) == ["5.0000", "5.0000"]


def every_update(*arguments, **options):
    return Progbar(*arguments, **{**options, "interval": 0})


Progbar = keras.utils.Progbar


def test_outside_a_terminal_lines_are_rare(monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    for terminal, interval in ((True, 0.1), (False, 10)):
        monkeypatch.setattr(sys.stdout, "isatty", lambda terminal=terminal: terminal, raising=False)
        assert Progress(1, "batch", "images").bar.interval == interval


def test_verbose_and_keras_hide_a_bar(clock, capsys):
    work(clock, 9, verbose=0)
    with progress.silenced():
        work(clock, 9)
    assert capsys.readouterr().out == "" and keras.config.is_interactive_logging_enabled()
    with progress.silenced(False):
        work(clock, 9)
    assert "4/4" in capsys.readouterr().out
    with pytest.raises(ValueError, match="`verbose`. Expected one of 0, 1. Received: 2"):
        Progress(1, "batch", "images", verbose=2)


@pytest.mark.parametrize("target", [None, 4, 3.5])
def test_work_that_breaks_off_or_of_unknown_length_ends_its_line(clock, capsys, target):
    with pytest.raises(KeyError), Progress(target, "MB", "MB") as bar:
        for done in (1.0, 2.0):
            clock.now += 6
            bar.update(done)
        raise KeyError
    shown = capsys.readouterr().out
    assert shown.endswith("\n") and "MB/s: 0.1667" in shown
