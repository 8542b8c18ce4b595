"""What commands show on a terminal."""

from __future__ import annotations

import io

import pytest

from gdsload.tools.cli.terminal import Bar, plain


class Terminal(io.TextIOWrapper):
    """A terminal of some encoding, and what it was sent."""

    def __init__(self, encoding="utf-8"):
        super().__init__(io.BytesIO(), encoding, write_through=True)

    def isatty(self):
        return True

    def sent(self):
        return self.buffer.getvalue().decode(self.encoding).split("\r\x1b[K")[1:]


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    return Clock()


def test_the_bar_shows_rate_and_what_is_left(clock):
    terminal = Terminal()
    bar = Bar(terminal, clock)
    clock.now += 2
    bar.show(1, 4, samples=100, nbytes=2**20)  # there from an interrupted run: no rate follows from it
    clock.now += 2
    bar.show(2, 4, samples=300, nbytes=2**21)
    bar.close()
    first, second, last = terminal.sent()
    assert first == "█████░░░░░░░░░░░░░░░ 25 %, 100 samples, 1 MiB"
    assert second == "4 s left, ██████████░░░░░░░░░░ 50 %, 300 samples, 2 MiB, 512 KiB/s"
    assert last == ""


@pytest.mark.parametrize(("seconds", "shown"), [(30, "30 s"), (61, "1:01 min"), (7322, "2:02 h")])
def test_what_is_left_is_told_in_fitting_units(clock, seconds, shown):
    terminal = Terminal()
    bar = Bar(terminal, clock)
    bar.show(0, 2, nbytes=0)
    clock.now += seconds
    bar.show(1, 2, nbytes=10)
    assert terminal.sent()[-1].startswith(f"{shown} left, ")


def test_it_is_not_shown_at_every_step_but_at_the_last(clock):
    terminal = Terminal()
    bar = Bar(terminal, clock)
    for done in range(1001):
        clock.now += 0.001
        bar.show(done, 1000, nbytes=done)
    assert 10 <= len(terminal.sent()) <= 12
    assert "100 %" in terminal.sent()[-1]


def test_it_fits_the_terminal(clock, monkeypatch):
    terminal = Terminal("ascii")
    bar = Bar(terminal, clock)
    bar.show(0, 2, samples=0, nbytes=0)
    for width in (80, 40, 30, 7):
        monkeypatch.setenv("COLUMNS", str(width))
        clock.now += 3
        bar.show(1, 2, samples=10**9, nbytes=2**40)
    assert terminal.sent()[1:] == [
        "3 s left, ##########.......... 50 %, 1000000000 samples, 1 TiB, 341.3 GiB/s",
        "6 s left, ##########.......... 50 %",
        "9 s left",
        "12 s l",
    ]


def test_elsewhere_nothing_is_shown():
    stream = io.StringIO()
    bar = Bar(stream)
    bar.show(1, 1, nbytes=1)
    bar.close()
    assert stream.getvalue() == ""


def test_what_comes_from_files_does_not_move_the_cursor():
    assert plain("a\x1b[2Jb\r\nü") == "a [2Jb  ü"
