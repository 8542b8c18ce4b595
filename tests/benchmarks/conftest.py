"""Benchmarks have processes of their own: here they have torch at hand."""

from __future__ import annotations

import multiprocessing
from multiprocessing import spawn

import pytest


@pytest.fixture(scope="module", autouse=True)
def processes(torch_server, quick_python_in_module):
    """All that a benchmark starts, by itself or as ranks."""
    before = spawn.get_executable()
    multiprocessing.set_executable(torch_server)
    yield
    multiprocessing.set_executable(before)
