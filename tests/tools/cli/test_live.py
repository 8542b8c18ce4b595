"""Progress in a real terminal, also when a command is interrupted."""

import os
import re
import signal
import textwrap
import time

import numpy as np
import pytest

from tests.tools.cli.terminals import Shown, settled, states

SLOW = """
    import sys
    from gdsload.conversion import recognise
    from tests.conversion.leisurely import Leisurely

    class Slow(Leisurely):
        def __init__(self, path):
            super().__init__(4, 200, PAUSE, threads=True)

    if __name__ == "__main__":
        from gdsload.tools.cli import main

        recognise.KINDS["slow"] = ("slow", "Slow")
        sys.modules["gdsload.conversion.sources.slow"] = sys.modules["__main__"]
        sys.exit(main(["convert", "slow.py", "out", "--kind", "slow", "--workers", "2",
                       "--shard-bytes", "3200", *sys.argv[1:]]))
"""


@pytest.fixture
def slow(tmp_path):
    def write(pause):
        (tmp_path / "slow.py").write_text(textwrap.dedent(SLOW).replace("PAUSE", str(pause)))
        return str(tmp_path / "slow.py")

    return write


@pytest.mark.slow
def test_a_conversion_shows_at_once_what_it_does_and_then_how_long_it_lasts(slow, tmp_path):
    """In a narrow terminal, whose width no line reaches."""
    terminal = Shown([slow(0.005)], columns=40, cwd=tmp_path)
    assert terminal.end() == 0
    shown = states(terminal.text)
    assert shown[:2] == ["starting…", "looking at the source…"]
    assert "starting on 4 parts…" in shown
    bars = [one for one in shown if "%" in one]
    assert len(bars) > 4
    within = [one for one in bars if re.search(r" (\d|1\d|2[0-4]) %", one)]
    assert within, "before the first of four parts is finished"
    assert all(re.match(r"\d+ s left, [█░]{20} \d+ %", one) for one in bars[2:])
    assert max(map(len, shown[:-1])) < 40
    assert re.match(
        r"out: 800 samples, 48 KiB in 4 shards,\s+[\d.]+\s+m?s, \d+ samples/s\n  n int64 · m int64\nnext: gdsload ",
        settled(terminal.text).strip(),
    )


@pytest.mark.slow
def test_who_ends_it_is_told_at_once_what_is_finished(slow, tmp_path):
    """Ctrl-C as a terminal sends it: to all processes. How it goes on: tests/conversion/test_processes.py."""
    terminal = Shown([slow(0.01)], cwd=tmp_path)
    terminal.read(until="%")
    while not list(tmp_path.glob(".out.gdsload-convert/part-*.json")):
        time.sleep(0.01)
    began = time.monotonic()
    os.killpg(terminal.process.pid, signal.SIGINT)
    code = terminal.end()
    assert time.monotonic() - began < 5  # a second, on a machine that does nothing else
    assert code == 130
    said = " ".join(re.sub(r"\x1b\[\d+m", "", settled(terminal.text)).split())
    wanted = (
        r"stopped: \d of 4 parts are finished, in \S+; run the same again to go on, or with --restart to begin again"
    )
    assert re.fullmatch(wanted, said)


def test_nothing_of_it_where_lines_cannot_be_written_over(tmp_path, in_terminal):
    np.save(tmp_path / "x.npy", np.arange(800))
    words = ["convert", f"{tmp_path}/x.npy", f"{tmp_path}/out", "--workers", "1", "--shard-bytes", "1600"]
    code, shown = in_terminal(*words, TERM="dumb")
    assert code == 0
    assert " ".join(shown.split()).startswith(f"{tmp_path / 'out'}: 800 samples, 32 KiB in 4 shards, ")


@pytest.mark.parametrize(("forbidden", "painted"), [("1", False), ("", True)])
def test_colours_in_a_terminal_and_where_they_are_forced_unless_forbidden(
    tmp_path, monkeypatch, cli, in_terminal, forbidden, painted
):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", forbidden)
    red = "\x1b[31merror:\x1b[0m"
    assert (red in cli("inspect", tmp_path / "none", code=1).err) == painted
    monkeypatch.delenv("FORCE_COLOR")
    assert (red in in_terminal("inspect", tmp_path / "none", NO_COLOR=forbidden)[1]) == painted
