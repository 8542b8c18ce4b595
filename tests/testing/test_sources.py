"""What the suite of batch sources notices: sources with one flaw each, and the tests that fail on them."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from functools import wraps
from types import MethodType

import pytest
import torch

from gdsload.backends.host import HostBackend
from gdsload.engine.batch_source import Failed, Ready
from gdsload.engine.read_planner import LoadedRows
from gdsload.errors import FileChangedError
from gdsload.testing import BatchSourceTests
from tests.engine.test_conformance import Landed

LAST = 28  # step of the suite's epochs
over = threading.Event()


class Source:
    """A source without flaws. A flaw is a function in the place of one of its methods."""

    def __init__(self, inner, method="", flaw=None):
        self.inner, self.takes_processor = inner, inner.takes_processor
        self.behind, self.handed, self.pending = 0, [], []
        if flaw is not None:
            setattr(self, method, MethodType(flaw, self))

    def start(self, steps):
        return Pending(self, steps, self.inner.start(steps))

    def result(self, pending, stopped):
        return pending.inner.result(stopped)

    def drop(self, pending):
        pending.inner.drop()

    def arena_bytes(self, steps, window_bytes):
        return self.inner.arena_bytes(steps, window_bytes)

    def hand_over(self, batches):
        return self.inner.hand_over(batches)

    def again(self):
        return self.inner.again()

    def close(self):
        self.inner.close()


class Pending:
    def __init__(self, source, steps, inner):
        self.source, self.steps, self.inner = source, steps, inner

    def landed(self):
        return self.inner.landed()

    def result(self, stopped):
        return self.source.result(self, stopped)

    def drop(self):
        self.source.drop(self)


# --- flaws in what comes of a group: of the batches of the epoch's last steps, or of a transform's error ---


def at_the_end(change):
    @wraps(change)
    def result(self, pending, stopped):
        ready = pending.inner.result(stopped)
        return change(ready.batches, ready.sizes) if LAST in pending.steps else ready

    return result


@at_the_end
def a_wrong_row(batches, sizes):
    batches[-1]["x"][-1] = batches[-1]["x"][0]
    return Ready(batches, sizes)


@at_the_end
def batches_out_of_order(batches, sizes):
    return Ready([*batches[:-2], *batches[-2:][::-1]], sizes)


@at_the_end
def a_batch_twice(batches, sizes):
    return Ready([*batches, batches[-1]], [*sizes, sizes[-1]])


@at_the_end
def the_last_batch_missing(batches, sizes):
    return Ready(batches[:-1], sizes[:-1])


@at_the_end
def a_wrong_size(batches, sizes):
    return Ready(batches, [*sizes[:-1], sizes[-1] + 1])


def with_an_error(change):
    @wraps(change)
    def result(self, pending, stopped):
        ready = pending.inner.result(stopped)
        at = [number for number, one in enumerate(ready.batches) if isinstance(one, Failed)]
        return change(ready, at[0]) if at else ready

    return result


@with_an_error
def an_error_that_ends_the_group(ready, at):
    return Ready(ready.batches[:at], ready.sizes[:at], ready.batches[at].error)


@with_an_error
def an_error_instead_of_the_other_batches(ready, at):
    raise ready.batches[at].error


@with_an_error
def an_error_swallowed(ready, at):
    return Ready(ready.batches[:at] + ready.batches[at + 1 :], ready.sizes[:at] + ready.sizes[at + 1 :])


@with_an_error
def an_error_elsewhere(ready, at):
    return Ready([*ready.batches[:at], *ready.batches[at + 1 :], ready.batches[at]], ready.sizes)


@with_an_error
def another_error(ready, at):
    other = Failed(RuntimeError("something went wrong"))
    return Ready([*ready.batches[:at], other, *ready.batches[at + 1 :]], ready.sizes)


def a_changed_file_never_noticed(self, steps):
    self.inner.backend.check = lambda _files: None
    return Source.start(self, steps)


def a_changed_file_noticed_at_the_start_only(self, pending, stopped):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(self.inner.backend, "check", lambda _files: None)
        return pending.inner.result(stopped)


def never_landed(self, steps):
    pending = Source.start(self, steps)
    pending.landed = lambda: False
    return pending


# --- flaws in which steps are made ---


def groups_finished_in_the_order_of_their_starts(self, steps):
    pending = Source.start(self, steps)
    self.pending.append(pending.inner)
    pending.result = lambda stopped: self.pending.pop(0).result(stopped)
    return pending


def steps_never_left_out(self, steps):
    low = min(steps.start, self.behind)
    self.behind = low + len(steps)
    return Source.start(self, range(low, self.behind))


def steps_never_started_again(self, steps):
    if steps.start < self.behind:
        raise RuntimeError("these steps were made before")
    self.behind = steps.stop
    return Source.start(self, steps)


def other_batches_made_again(self):
    again = self.inner.again()
    return Source(again, "start", lambda self, steps: Source.start(self, range(steps.start + 1, steps.stop + 1)))


# --- flaws in memory ---


def memory_used_again_by_the_next_group(self, pending, stopped):
    ready = pending.inner.result(stopped)
    wipe(self.handed)
    self.handed = ready.batches
    return ready


def memory_taken_back_by_close(self, batches):
    self.handed += batches
    self.close = lambda: (wipe(self.handed), self.inner.close())
    return self.inner.hand_over(batches)


def wipe(batches):
    for batch in batches:
        for value in batch.values():
            if isinstance(value, torch.Tensor):
                value.zero_()


def arena_memory_never_accounted_for(self, steps, window_bytes):
    return 0


def arena_memory_accounted_for_by_the_group(self, steps, window_bytes):
    return min(self.inner.arena_bytes(steps, window_bytes), 1)


def arena_memory_always_accounted_for(self, steps, window_bytes):
    return 1 << 20


# --- flaws in what is left ---


def memory_held_for_dropped_groups(self, pending):
    pass


def memory_held_after_an_error(self, steps):
    try:
        return Source.start(self, steps)
    except FileChangedError:
        self.inner.backend.read(self.inner.job.table.files.whole(0))
        raise


def memory_released_while_it_is_read_into(self, pending):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LoadedRows, "drop", LoadedRows.used)
        pending.inner.drop()


def windows_left_by_close(self):
    pass


def a_thread_left_by_close(self, steps):
    threading.Thread(target=over.wait, args=(20,), daemon=True).start()
    return Source.start(self, steps)


# --- what is noticed ---

HELD = "nothing_is_held_for_groups_that_are_made_or_dropped"
STARTED_AGAIN = [HELD, "batches_stay_as_they_are", "a_file_that_changes_is_noticed"]
DROPPED = [HELD, "batches_stay_as_they_are", "made_again"]
FLAWS = [
    ("", None, []),
    ("result", a_wrong_row, ["batches_are_the_references"]),
    ("result", batches_out_of_order, ["batches_are_the_references"]),
    ("result", a_batch_twice, ["batches_are_the_references"]),
    ("result", the_last_batch_missing, ["batches_are_the_references"]),
    ("result", a_wrong_size, ["batches_are_the_references"]),
    ("start", never_landed, ["batches_are_the_references"]),
    ("result", an_error_that_ends_the_group, ["an_error_of_a_transform_takes_the_place_of_its_batch"]),
    ("result", an_error_instead_of_the_other_batches, ["an_error_of_a_transform_takes_the_place_of_its_batch"]),
    ("result", an_error_swallowed, ["an_error_of_a_transform_takes_the_place_of_its_batch"]),
    ("result", an_error_elsewhere, ["an_error_of_a_transform_takes_the_place_of_its_batch"]),
    ("result", another_error, ["an_error_of_a_transform_takes_the_place_of_its_batch"]),
    ("start", a_changed_file_never_noticed, ["a_file_that_changes_is_noticed"]),
    ("result", a_changed_file_noticed_at_the_start_only, ["a_file_that_changes_is_noticed"]),
    ("start", groups_finished_in_the_order_of_their_starts, ["groups_are_started_ahead_and_finished_in_any_order"]),
    (
        "start",
        steps_never_left_out,
        ["steps_that_are_left_out", "an_error_of_a_transform_takes_the_place_of_its_batch"],
    ),
    ("start", steps_never_started_again, ["steps_are_started_again", *STARTED_AGAIN]),
    ("again", other_batches_made_again, ["made_again"]),
    ("result", memory_used_again_by_the_next_group, ["batches_are_the_references", "batches_stay_as_they_are"]),
    ("hand_over", memory_taken_back_by_close, ["batches_stay_as_they_are"]),
    ("arena_bytes", arena_memory_never_accounted_for, ["arena_memory_is_accounted_for"]),
    ("arena_bytes", arena_memory_accounted_for_by_the_group, ["arena_memory_is_accounted_for"]),
    ("arena_bytes", arena_memory_always_accounted_for, ["arena_memory_is_accounted_for"]),
    ("drop", memory_held_for_dropped_groups, [HELD]),
    ("start", memory_held_after_an_error, ["a_file_that_changes_is_noticed"]),
    ("drop", memory_released_while_it_is_read_into, DROPPED),
    ("close", windows_left_by_close, [HELD]),
    ("start", a_thread_left_by_close, ["close_ends_all_threads"]),
]
TESTS = {name.removeprefix("test_") for name in vars(BatchSourceTests) if name.startswith("test_")}


class Awaited:
    """A completion that is there once it has been waited for."""

    landed = False

    def __init__(self, inner):
        self.inner = inner

    def wait(self):
        self.inner.wait()
        self.landed = True


class Late(HostBackend):
    def read(self, wanted, to="device"):
        landing = super().read(wanted, to)
        return replace(landing, completion=Awaited(landing.completion))


class Flawed(Landed):
    """The suite over a flawed source; collected by `Run` alone."""

    mapped = ragged = False

    @pytest.fixture(autouse=True)
    def given(self, flaw, monkeypatch):
        self.flaw = flaw
        monkeypatch.setattr(os, "fsync", lambda _fd: None)  # half of the time, and no dataset is to outlive a crash

    def open_backend(self, files):
        return Late(files, threads=1)

    def source(self, job, backend, form):
        return Source(super().source(job, backend, form), *self.flaw)


class Run:
    """A run of pytest by itself: what it gives to the tests, and which of them ran and failed."""

    def __init__(self, *given):
        self.given, self.ran, self.failed = given, set(), set()

    @pytest.fixture
    def flaw(self):
        return self.given

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.rpartition("::")[2].partition("[")[0].removeprefix("test_")
        self.ran.add(name)
        if report.failed:
            self.failed.add(name)


@pytest.mark.parametrize(
    ("method", "flaw", "expected"), FLAWS, ids=[getattr(flaw, "__name__", "none") for _, flaw, _ in FLAWS]
)
def test_a_flaw_is_noticed_where_it_is_expected(request, tmp_path, monkeypatch, method, flaw, expected):
    """By the tests that are for it; all of them pass a source without flaws."""
    run, asked = Run(method, flaw), set(expected) or TESTS
    over.clear()
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    without = ["cacheprovider", "faulthandler", "threadexception", "unraisableexception"]
    pytest.main(
        [
            *(f"{__file__}::Flawed::test_{name}" for name in asked), "-q", "-k", "[block or block]", "--tb=short", "-c", os.devnull, "-o", "python_classes=Flawed",
            "--noconftest", "--assert=plain", "--import-mode=importlib", f"--rootdir={request.config.rootpath}",
            f"--basetemp={tmp_path / 'inner'}", *(part for name in without for part in ("-p", f"no:{name}")),
        ],
        plugins=[run],
    )  # fmt: skip
    over.set()
    assert run.ran == asked
    assert run.failed == set(expected)


def test_each_test_of_the_suite_notices_something():
    assert {name for *_, expected in FLAWS for name in expected} == TESTS
