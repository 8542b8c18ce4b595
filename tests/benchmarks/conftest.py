"""Benchmarks have processes of their own: here they have torch at hand."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def processes(quick_python_in_module):
    """All that a benchmark starts."""
