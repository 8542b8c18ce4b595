"""The run ends, whatever threads and processes tests have left behind, which Python waits for."""

from __future__ import annotations

import faulthandler
import sys

import pytest


def pytest_unconfigure(config: pytest.Config) -> None:
    """As for a single test: who waits too long is shown, and ended."""
    seconds = float(config.getini("faulthandler_timeout"))
    if seconds > 0 and not hasattr(config, "workerinput"):  # a worker of xdist waits for the others, and ends with them
        faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
