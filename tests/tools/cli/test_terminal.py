"""The output of commands on a terminal."""

import errno
import io
import os
import subprocess
import sys

import pytest

import gdsload
from gdsload.tools.cli import main
from gdsload.tools.cli.terminal import Bar
from tests.shards.bits import flip
from tests.tools.cli.terminals import Shown, Terminal


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    return Clock()


@pytest.fixture
def terminal():
    return Terminal()


@pytest.fixture
def bar(terminal, clock):
    return Bar(terminal, clock)


def test_the_bar_shows_rate_and_what_is_left(terminal, clock, bar):
    clock.now += 2
    bar.show(1, 4, samples=100, nbytes=2**20)  # there from an interrupted run: no rate follows from it
    clock.now += 2
    bar.show(2, 4, samples=300, nbytes=2**21)
    bar.close()
    assert terminal.sent() == [
        "█████░░░░░░░░░░░░░░░ 25 %, 100 samples, 1 MiB",
        "4 s left, ██████████░░░░░░░░░░ 50 %, 300 samples, 2 MiB, 512 KiB/s",
        "",
    ]


@pytest.mark.parametrize(("seconds", "shown"), [(30, "30 s"), (61, "1:01 min"), (7322, "2:02 h")])
def test_what_is_left_is_told_in_fitting_units(terminal, clock, bar, seconds, shown):
    bar.show(0, 2, nbytes=0)
    clock.now += seconds
    bar.show(1, 2, nbytes=10)
    assert terminal.sent()[-1].startswith(f"{shown} left, ")


def test_it_is_not_shown_at_every_step_but_at_the_last(terminal, clock, bar):
    for done in range(1001):
        clock.now += 0.001
        bar.show(done, 1000, nbytes=done)
    assert 10 <= len(terminal.sent()) <= 12
    assert "100 %" in terminal.sent()[-1]


def test_another_step_is_shown_at_once(terminal, clock, bar):
    for what in ("reading", "reading", "comparing", "comparing"):
        bar.show(1, 4, what=what)
    assert [one.rpartition(" ")[2] for one in terminal.sent()] == ["reading", "comparing"]


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


def test_a_log_gets_a_line_each_half_minute(clock):
    log = io.StringIO()
    bar = Bar(log, clock)
    bar.say("looking…")
    for second in range(100):
        bar.show(second, 200, samples=second)
        clock.now += 1
    bar.close()
    assert log.getvalue().splitlines() == [
        "after 30 s: 2:50 min left, 15 %, 30 samples",
        "after 1:00 min: 2:20 min left, 30 %, 60 samples",
        "after 1:30 min: 1:50 min left, 45 %, 90 samples",
    ]


def test_a_short_run_leaves_nothing_in_a_log_and_a_quiet_one_neither(clock):
    log = io.StringIO()
    for hidden, seconds in ((False, 29), (True, 300)):
        bar = Bar(log, clock, hidden=hidden)
        clock.now += seconds
        bar.show(1, 1, nbytes=1)
        bar.close()
    assert log.getvalue() == ""


def test_help_in_a_pipe_fits_the_terminal_that_shows_it():
    """As under `less`, whose terminal has the width."""
    help_of = "s.run([sys.executable, '-m', 'gdsload', 'help'], stdout=s.PIPE, text=True).stdout.splitlines()"
    terminal = Shown(["-c", f"import subprocess as s, sys; print(max(map(len, {help_of})))"], columns=50)
    assert terminal.end() == 0
    assert 40 < int(terminal.text) <= 50


def test_a_terminal_that_goes_away_stops_nothing(terminal, clock, bar):
    def gone():
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    bar.show(1, 4)
    terminal.flush = gone
    for done in (2, 3):
        clock.now += 2
        bar.show(done, 4)
    bar.close()
    assert len(terminal.sent()) == 2


@pytest.fixture
def dataset(tmp_path):
    with gdsload.ShardWriter(tmp_path / "d") as writer:
        writer.write({"x": 1})
    return tmp_path / "d"


COMMANDS = [
    ("convert {1}/none {1}/o", 1), ("convert {1}/x.csv {1}/o --json", 0), ("convert {1}/x.csv {1}/o --dry-run", 0),
    ("reshard {0} {1}/o", 0), ("split {0} {1}/o {1}/p --sizes 1", 2), ("merge {0} {0} --out {1}/o", 2),
    ("verify {0}", 0), ("verify {0} --json", 0), ("verify {1}/none", 1), ("inspect {0}", 0), ("inspect {0} --json", 0),
    ("doctor {0} --no-probe", 0), ("bench {0} --turns 1 --seconds 0.01 --hot-only", 0), ("completion bash", 0),
    ("--help", 0), ("--version", 0), ("verify --no-such", 2), ("none", 2),
]  # fmt: skip


@pytest.mark.parametrize(("words", "code"), COMMANDS)
def test_commands_do_their_work_without_streams(tmp_path, dataset, monkeypatch, words, code):
    """As under pythonw, in a daemon, or with ``2>&-``: Python has None in place of what was closed."""
    (tmp_path / "x.csv").write_text("n\n1\n")
    if words.startswith("completion"):
        pytest.importorskip("shtab", reason="shtab writes completions")
    for name in ("stdout", "stderr", "stdin"):
        monkeypatch.setattr(sys, name, None)
    try:
        found = main(words.format(dataset, tmp_path).split())
    except SystemExit as error:
        found = error.code or 0
    assert found == code
    assert (tmp_path / "o").exists() == (code == 0 and "/o" in words and "--dry-run" not in words)


def test_files_do_not_get_the_numbers_of_closed_streams(tmp_path):
    """The output of a C library would be written into them."""
    (tmp_path / "own.py").write_text(
        "import os\ndef f(sample):\n    return {'n': ' '.join(os.readlink(f'/proc/self/fd/{n}') for n in range(3))}\n"
    )
    (tmp_path / "x.csv").write_text("n\n1\n2\n")
    words = f"{sys.executable} -m gdsload convert x.csv o --map own:f --workers 1"
    subprocess.run(["bash", "-c", f"exec {words} <&- >&- 2>&-"], cwd=tmp_path, check=True)
    assert gdsload.ShardDataset(tmp_path / "o").column("n") == ["/dev/null /dev/null /dev/null"] * 2


def test_a_damaged_dataset_is_told_by_the_exit_code_though_nobody_reads_the_output(dataset, capsys, monkeypatch):
    (shard,) = dataset.glob("shard-*")
    flip(shard, shard.stat().st_size - 1)
    nobody, output = os.pipe()
    os.close(nobody)
    monkeypatch.setattr(sys, "stdout", os.fdopen(output, "w"))
    assert main(["verify", str(dataset), "--json"]) == 1
    assert capsys.readouterr().err == ""
