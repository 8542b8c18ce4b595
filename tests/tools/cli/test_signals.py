"""SIGTERM and Ctrl-C end commands."""

import os
import signal
import sys
import time
from unittest.mock import Mock

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
    monkeypatch.setattr(convert, "add_source_options", Mock(side_effect=KeyboardInterrupt))
    assert main(["convert", "pictures", "out", "--size", "8"]) == 130
    assert capsys.readouterr().err == "stopped: by Ctrl-C\n"


def test_ctrl_c_while_a_fault_is_shown(monkeypatch, capsys):
    monkeypatch.setattr("gdsload.tools.cli.show_fault", Mock(side_effect=KeyboardInterrupt))
    assert main(["inspect", "nowhere"]) == 130
    assert capsys.readouterr().err == "stopped: by Ctrl-C\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_waits_for_the_end_of_an_import(monkeypatch, capsys, number, code):
    """Libraries turn it into an error that says nothing of it, or abort."""

    class Library:
        @staticmethod
        def find_spec(name, *_):
            if name == "gdsload.conversion.rearrange":
                try:
                    signal.raise_signal(number)
                except KeyboardInterrupt:
                    raise ImportError("its parts cannot be imported") from None

    monkeypatch.delitem(sys.modules, "gdsload.conversion.rearrange", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Library, *sys.meta_path])
    assert main(["convert", "pictures", "out"]) == code
    assert "stopped" in capsys.readouterr().err
