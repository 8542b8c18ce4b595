"""How many threads make groups of batches."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gdsload.engine import groups
from gdsload.engine.groups import workers


class Arena:
    """A backend that brings bytes into memory of its own."""


class Reaching(Arena):
    """One that may have all shards where the GPU can gather from them."""

    def reachable(self):
        return None

    def count(self, base, nbytes):
        pass

    def check(self, files):
        pass


@pytest.mark.parametrize(
    ("backend", "takes_processor", "processors", "expected"),
    [
        (Arena(), True, 16, 4),
        (Arena(), True, 3, 2),
        (Arena(), True, 1, 1),
        (Reaching(), True, 16, 4),
        # On a GPU they only wait for it.
        (Arena(), False, 16, 1),
        (Reaching(), False, 16, 2),
        (Reaching(), False, 1, 2),
    ],
)
def test_workers(monkeypatch, backend, takes_processor, processors, expected):
    monkeypatch.setattr(groups.os, "sched_getaffinity", lambda _process: set(range(processors)))
    assert workers(backend, SimpleNamespace(takes_processor=takes_processor)) == expected
