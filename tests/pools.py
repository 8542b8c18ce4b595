"""Work that holds up a pool of threads, and the threads that run."""

import threading
from contextlib import contextmanager


def running():
    """The names of the threads of tests' pools."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("gdsload-test")]


def own_threads():
    """The names of the library's threads, but for that of the process in which conversions have read, which stays."""
    names = [thread.name for thread in threading.enumerate()]
    return sorted(name for name in names if name.startswith("gdsload") and not name.startswith("gdsload-read"))


@contextmanager
def no_threads(error, begun=0, *, closers=False):
    """Threads of pools cannot be started in here, but for some: that raises an error."""
    start, left = threading.Thread.start, begun

    def struck(thread):
        nonlocal left
        if thread.name.startswith("gdsload-closer") and not closers:  # of what an earlier test has dropped
            start(thread)
        elif left:
            left -= 1
            start(thread)
        else:
            raise error

    threading.Thread.start = struck
    try:
        yield
    finally:
        threading.Thread.start = start


class Held:
    """Work that a thread is held up by."""

    def __init__(self):
        self.begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self):
        self.begun.set()
        assert self.may_end.wait(30)
