"""SIGTERM and Ctrl-C end commands."""

import os
import signal
import time

import pytest

from gdsload.tools.cli import Terminated, convert, ended_by_sigterm, main


def test_sigterm_ends_what_is_under_way():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated, match="^$"), ended_by_sigterm():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)  # until it strikes: another thread may have been given the signal
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with ended_by_sigterm():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_was_interrupted_while_it_was_imported_is_not_imported_again(monkeypatch, capsys):
    def importing(parser, wanted):
        raise KeyboardInterrupt

    monkeypatch.setattr(convert, "add_source_options", importing)
    assert main(["convert", "pictures", "out", "--size", "8"]) == 130
    assert capsys.readouterr().err == "stopped: by Ctrl-C\n"
