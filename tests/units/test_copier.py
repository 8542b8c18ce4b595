"""The thread that copies for all readers, where the system has no further thread."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from gdsload.backends import copier as copier_module
from gdsload.backends.copier import Copier


def test_a_thread_that_cannot_be_started_is_an_error_each_time(monkeypatch):
    """And not a queue that nobody serves: whoever waits for its end would wait for ever."""
    monkeypatch.setattr(copier_module, "side_stream", lambda _device: None)
    copier = Copier(SimpleNamespace(), SimpleNamespace())

    def refused(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="can't start"):
                copier.copy(None, None, None)
    copier.close()
