"""The run ends, even if tests have left threads and processes running, which Python waits for."""

from __future__ import annotations

import faulthandler
import sys

import pytest


def pytest_unconfigure(config: pytest.Config) -> None:
    """As for a single test: a thread that waits too long is shown, and ended."""
    seconds = float(config.getini("faulthandler_timeout"))
    if seconds > 0 and not hasattr(config, "workerinput"):  # a worker of xdist waits for the others, and ends with them
        faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
