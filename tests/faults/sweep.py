"""Each system call fails in turn, with each error that the manual names for it, then the work is done again.

Right is: the work does what it would have done, or raises one `GdsloadError` with a file and a remedy. What was at the
target is whole: the old or the new. No descriptor stays open, nothing waits for ever, nothing is left beside the
target after the second time. Needs the injector; see `__main__`.
"""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import gc
import logging
import os
import random
import re
import resource
import shutil
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdsload import BackendUnavailableError, BudgetError, GdsloadError
from tests.faults.errnos import CALLS, ERRNOS
from tests.faults.works import HUNGRY, WORKS, Work

FOREVER = 2**31
MEMORY = "memory"
HUNG_S = 120


@dataclass(frozen=True)
class Fault:
    """Calls `first` to `last` of a kind fail with an error."""

    work: str
    call: str
    code: int
    first: int
    last: int

    def __str__(self) -> str:
        which = f"#{self.first}" + ("" if self.last == self.first else " on")
        return f"{self.work}: {self.call} {which} {errno.errorcode.get(self.code, self.code)}"


@dataclass
class Outcome:
    """The result of a trial; `wrong` is empty if it was right."""

    hits: int = 0
    error: str = ""
    wrong: list[str] = field(default_factory=list)


class Sweep:
    """Trials of faults, in a folder whose path has no other use.

    Args:
        folder: an empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self.injector = ctypes.CDLL(None)
        self.injector.faults_arm.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long, ctypes.c_char_p]
        self.injector.faults_calls.restype = self.injector.faults_hits.restype = ctypes.c_long
        self.folder = folder
        self.expected: dict[str, tuple[Any, Any, Any, list[str]]] = {}

    def arm(self, fault: Fault) -> None:
        self.injector.faults_arm(
            CALLS.index(fault.call), fault.code, fault.first, fault.last, os.fsencode(self.folder / "root")
        )

    def begin(self, fault: Fault) -> None:
        """Let a fault begin: for a call that is ``memory``, a limit `first` bytes above what is in use."""
        if fault.call != MEMORY:
            self.arm(fault)
            return
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + fault.first, resource.RLIM_INFINITY))

    def end(self) -> None:
        """Let it end."""
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        self.injector.faults_disarm()

    def root(self, name: str) -> Path:
        """The folder of a work, as it is before."""
        root, kept = self.folder / "root", self.folder / f"kept-{name}"
        shutil.rmtree(root, ignore_errors=True)
        if not kept.exists():
            root.mkdir()
            (WORKS | HUNGRY)[name].prepare(root)
            shutil.copytree(root, kept, symlinks=True)
        else:
            shutil.copytree(kept, root, symlinks=True)
        return root

    def learn(self, name: str) -> None:
        """Do a work without faults, to know what is right."""
        work, root = (WORKS | HUNGRY)[name], self.root(name)
        before = work.content(root) if work.content else None
        work.do(root, False)  # imports, and whatever is asked once
        root = self.root(name)
        result = work.do(root, False)
        self.expected[name] = result, before, work.content(root) if work.content else None, tree(root)

    def calls(self, name: str, call: str) -> int:
        """How many calls of a kind a work makes."""
        root = self.root(name)
        self.arm(Fault(name, call, 0, FOREVER, FOREVER))
        (WORKS | HUNGRY)[name].do(root, False)
        self.injector.faults_disarm()
        return int(self.injector.faults_calls())

    def faults(self, name: str) -> Iterator[Fault]:
        """All faults of a work: the nth call fails, or it and all after it."""
        if name not in self.expected:
            self.learn(name)
        if name in HUNGRY:
            yield from (Fault(name, MEMORY, errno.ENOMEM, step, step) for step in range(0, 2**25, 2**17))
            return
        for call in CALLS:
            for number in range(1, self.calls(name, call) + 1):
                for code in ERRNOS[call]:
                    for last in (number, FOREVER):
                        if (code, last) not in ((errno.EINTR, FOREVER), (errno.EAGAIN, FOREVER)):
                            yield Fault(name, call, code, number, last)

    def trial(self, fault: Fault) -> Outcome:
        """One fault, and the work again without it."""
        work, root, outcome = (WORKS | HUNGRY)[fault.work], self.root(fault.work), Outcome()
        result, before, after, files = self.expected[fault.work]
        faulthandler.dump_traceback_later(HUNG_S, exit=True)
        descriptors = opened(root)
        self.begin(fault)
        try:
            if work.do(root, False) != result:
                outcome.wrong.append("the result is wrong")
            failed = False
        except BaseException as error:
            self.end()
            outcome.error, failed = type(error).__name__, True
            outcome.wrong += faults_of(error, root)
        self.end()
        outcome.hits = int(self.injector.faults_hits())
        if left := opened(root) - descriptors:
            gc.collect()
            if left := opened(root) - descriptors:
                outcome.wrong.append(f"descriptors stay open: {left}")
        try:
            self._look(work, root, (before, after), outcome)
            self._again(work, root, failed, outcome, (result, after, files))
        except BaseException as error:
            outcome.wrong.append("afterwards: " + "".join(traceback.format_exception(error))[-1500:])
        faulthandler.cancel_dump_traceback_later()
        return outcome

    def _look(self, work: Work, root: Path, allowed: tuple[Any, Any], outcome: Outcome) -> None:
        if work.content and work.content(root) not in allowed:
            aside = [
                name for name in os.listdir(root) if name.endswith(".old")
            ]  # two renames failed: the next restores
            if not aside:
                outcome.wrong.append("the dataset is neither the old nor the new one")

    def _again(self, work: Work, root: Path, failed: bool, outcome: Outcome, right: tuple[Any, Any, list[str]]) -> None:
        result, after, files = right
        if (failed or not work.content or tree(root) != files) and work.do(root, True) != result:
            outcome.wrong.append("the second result is wrong")
        if work.content and work.content(root) != after:
            outcome.wrong.append("the second dataset is wrong")
        if (found := tree(root)) != files:
            outcome.wrong.append(f"left: {sorted(set(found) ^ set(files))}")


def faults_of(error: BaseException, root: Path) -> list[str]:
    """The faults of an error."""
    if not isinstance(error, GdsloadError):
        place = traceback.extract_tb(error.__traceback__)
        ours = [f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in place if "/gdsload/" in one.filename]
        return [f"raw {type(error).__name__}: {error} at {' < '.join(reversed(ours[-4:]))}"]
    named = (
        error.file
        or isinstance(error, BudgetError | BackendUnavailableError)
        or str(root) in str(error)
        or any(one in str(error) for one in names(root))
    )
    wrong = [] if named else [f"no file in {type(error).__name__}: {error.message}"]
    return wrong if error.remedy else [*wrong, f"no remedy in {type(error).__name__}: {error.message}"]


def names(root: Path) -> list[str]:
    """The names of the files below a folder."""
    return [name for _, _, found in os.walk(root) for name in found]


def opened(root: Path) -> set[str]:
    """The open descriptors below a folder."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            if (path := os.readlink(f"/proc/self/fd/{fd}")).startswith(str(root)):
                found.add(f"{fd}: {path}")
        except OSError:
            continue
    return found


def tree(root: Path) -> list[str]:
    """The names below a folder, random ones with their digits left out, but for the number of shards.

    It goes by estimates, for which a file that cannot be read at first counts as one of unknown size.
    """
    found = [
        os.path.relpath(os.path.join(at, one), root) for at, below, names in os.walk(root) for one in below + names
    ]
    return sorted(
        re.sub(r"gdsload-[0-9a-f]{12}|dataset-[0-9a-f-]+", "TOKEN", one) for one in found if "out/shard-" not in one
    )


def sweep(folder: Path, names: list[str], share: float, seed: int, out: Any = sys.stdout) -> dict[str, int]:
    """All faults of some works, or a share of them; prints what is wrong, returns counts."""
    logging.disable()  # batches that are made at the second try are warned of
    chosen, made = random.Random(seed), Sweep(folder)
    counts = {"trials": 0, "hits": 0, "errors": 0, "wrong": 0}
    for name in names:
        for fault in made.faults(name):
            if chosen.random() >= share:
                continue
            outcome = made.trial(fault)
            counts["trials"] += 1
            counts["hits"] += outcome.hits > 0
            counts["errors"] += bool(outcome.error)
            counts["wrong"] += bool(outcome.wrong)
            if outcome.wrong:
                print(f"{fault}: {'; '.join(outcome.wrong)}", file=out, flush=True)
    return counts
