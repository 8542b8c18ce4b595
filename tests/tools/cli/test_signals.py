"""SIGTERM and Ctrl-C end commands."""

import os
import signal
import sys
import time
from unittest.mock import Mock

import pytest

from gdsload.tools.cli import Terminated, ended_by_sigterm, main


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


@pytest.mark.parametrize(
    ("during", "words"),
    [("convert.add_source_options", "convert pictures out --size 8"), ("show_fault", "inspect nowhere")],
)
def test_ctrl_c_while_options_of_a_kind_are_imported_or_a_fault_is_shown(monkeypatch, capsys, during, words):
    """Modules whose import was interrupted are not imported again."""
    monkeypatch.setattr(f"gdsload.tools.cli.{during}", Mock(side_effect=KeyboardInterrupt))
    assert main(words.split()) == 130
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
