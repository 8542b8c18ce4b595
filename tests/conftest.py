"""Fixtures of all tests: the device that they run on, and a skip for those that need a GPU."""

from __future__ import annotations

import gc
import os
import platform
import signal
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from gdsload.system import pool
from gdsload.system.version import __version__

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have what runs in the background ignore it
NEEDS = "GDSLOAD_REQUIRE"
ROOT = str(Path(__file__).resolve().parent.parent)
# Programs that tests start, in whichever folder, import this tree, though it is not installed.
os.environ["PYTHONPATH"] = os.pathsep.join([ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])
with suppress(ImportError):  # some environments run other tests alone
    from hypothesis import settings

    settings.register_profile("gdsload", deadline=None)  # a busy machine is no failure; --durations finds slow tests
    settings.load_profile("gdsload")
# Fixtures that tests of several rooms use; conftest.py of a room has those of it alone.
pytest_plugins = [
    "tests.at_the_end",
    "tests.drives",
    "tests.machines",
    "tests.on_gpu",
    "tests.page_cache",
    "tests.ranks",
]


def no_gpu_is_fine() -> bool:
    """Return whether tests that need a GPU are left out, as there is none and nobody asked for them."""
    return not torch.cuda.is_available() and "cuda" not in os.environ.get(NEEDS, "").split(",")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out two thousand tests that would skip: to collect them takes seconds in each process."""
    return True if collection_path.name.endswith("_on_gpu.py") and no_gpu_is_fine() else None


def pytest_report_header() -> str:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    if no_gpu_is_fine():
        device += ", which leaves test_*_on_gpu.py out"
    return (
        f"gdsload {__version__}, Python {platform.python_version()}, "
        f"torch {torch.__version__}, numpy {np.__version__}, CUDA device: {device}, {NEEDS}={os.environ.get(NEEDS, '')}"
    )


def pytest_collection_finish() -> None:
    """Exclude the objects of pytest's collection, which live as long as the process, from garbage collection."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") is None or torch.cuda.is_available():
        return
    if no_gpu_is_fine():
        pytest.skip("needs an NVIDIA GPU")
    pytest.fail(f"{NEEDS}=cuda, but torch sees no CUDA device", pytrace=False)


@pytest.fixture
def interrupted():
    """Has Ctrl-C strike in a call that takes longer than some seconds: ``interrupted(0.05, loader.close)``."""

    def struck(after_s, call):
        strikes, raised = [], False

        def strike(*_):
            strikes.append(1)
            raise KeyboardInterrupt

        limit = signal.getitimer(signal.ITIMER_REAL)  # the test's own
        before, collects = signal.signal(signal.SIGALRM, strike), gc.isenabled()
        gc.disable()  # hypothesis has Python code called where garbage is collected, which loses what is raised in it
        try:
            signal.setitimer(signal.ITIMER_REAL, after_s, 10)  # once more, should one be lost
            call()
        except KeyboardInterrupt:
            raised = True
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            signal.setitimer(signal.ITIMER_REAL, *limit)  # whole again; the last limit of all goes on
            if collects:
                gc.enable()
        assert (len(strikes), raised) == (1, True)

    return struck


@pytest.fixture
def in_thread():
    """Call something in another thread; gives a future of what it returns or raises."""

    def begin(call, *given):
        future = Future()

        def run():
            try:
                future.set_result(call(*given))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return future

    return begin


@pytest.fixture
def soon():
    """Wait until something holds."""

    def wait(condition, timeout_s=10.0):
        end = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end, "it did not come to hold"
            time.sleep(0.005)

    return wait


@pytest.fixture
def own_end(monkeypatch):
    """Reset the library's notes of the interpreter's end, so that the threads of later tests go on."""
    monkeypatch.setattr(pool, "program_end", pool.ProgramEnd())
    monkeypatch.setattr(pool, "_endless", pool.WeakList())


@pytest.fixture
def ends_in_a_child():
    """Return whether a call returns in a forked child, without an error: ``assert ends_in_a_child(call)``."""

    def ends(call):
        child = os.fork()
        if not child:
            returned = []
            calling = threading.Thread(target=lambda: returned.append(call()), daemon=True)
            calling.start()
            calling.join(10)
            os._exit(not returned)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    return ends
