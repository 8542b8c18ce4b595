"""The run ends, whatever threads and processes tests have left behind, which Python waits for."""

from __future__ import annotations

import faulthandler
import sys

import pytest


def pytest_unconfigure(config: pytest.Config) -> None:
    """As for a single test: who waits too long is shown, and ended."""
    faulthandler.dump_traceback_later(float(config.getini("faulthandler_timeout")), exit=True, file=sys.__stderr__)
