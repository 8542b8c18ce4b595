"""Signals end commands."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from gdsload.tools.cli import convert, main
from gdsload.tools.cli.signals import Terminated, ended_by_signals


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_signals_end_what_is_under_way(number, kind):
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(kind, match="^$") as caught, ended_by_signals() as again:
        again()
        os.kill(os.getpid(), number)
        time.sleep(5)  # until it strikes: another thread may have been given the signal
    assert type(caught.value) is kind
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_signal_that_python_forgets_comes_again(monkeypatch):
    forgotten = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: forgotten.append(found.exc_type))

    class Ended:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="^$"), ended_by_signals() as again:
        Ended()
        assert forgotten == [KeyboardInterrupt]
        again()


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with ended_by_signals() as again:
            os.kill(os.getpid(), signal.SIGINT)
            again()
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_was_interrupted_while_it_was_imported_is_not_imported_again(monkeypatch, capsys):
    def importing(parser, wanted):
        raise KeyboardInterrupt

    monkeypatch.setattr(convert, "add_source_options", importing)
    assert main(["convert", "pictures", "out", "--size", "8"]) == 130
    assert capsys.readouterr().err == "stopped: by Ctrl-C\n"
