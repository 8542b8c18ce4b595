"""Work that holds up a pool of threads, and the threads that run."""

from __future__ import annotations

import threading

__all__ = ["Held", "running"]


def running():
    """The names of the threads of tests' pools."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("gdsload-test")]


class Held:
    """Work that a thread is held up by."""

    def __init__(self):
        self.begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self):
        self.begun.set()
        assert self.may_end.wait(30)
