"""A sampling profiler of threads: every few milliseconds, each thread's innermost line of a package.

A thread is looked at by one that holds the interpreter lock, so lines that hold it are seen less often than they run:
what is found are the waits, and the calls outside Python.
"""

from __future__ import annotations

import gc
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

__all__ = ["Sampled", "sampled"]

_EVERY_S = 0.002


class Sampled:
    """The counts of the lines at which threads were seen.

    Args:
        package: the folder of the lines to count.

    Attributes:
        looks: how often they were looked at.
    """

    def __init__(self, package: Path) -> None:
        self._package, self.looks = package, 0
        self._seen: Counter[tuple[str, str]] = Counter()

    def look(self) -> None:
        """Look once at all threads but the one that calls."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        # Python 3.11 holds its list of threads meanwhile: a collection that runs Python code, as hypothesis has it, and
        # a thread that wants the list wait for each other for ever (https://github.com/python/cpython/issues/106883).
        collects = gc.isenabled()
        gc.disable()
        try:
            frames = sys._current_frames()  # noqa: SLF001 (there is no other way)
        finally:
            if collects:
                gc.enable()
        for ident, frame in frames.items():
            if ident != threading.get_ident() and (line := self._line(frame)):
                # Threads of one kind have one name, and a number.
                self._seen[re.sub(r"-\d+$", "", names.get(ident, "?")), line] += 1
        self.looks += 1

    def _line(self, frame: FrameType | None) -> str:
        """The innermost line of the package, and the function that it has called, if that is not the package's."""
        inner = frame.f_code.co_name if frame else ""
        own = True
        while frame:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(self._package):
                called = "" if own else f" -> {inner}"
                place = f"{path.relative_to(self._package)}:{frame.f_lineno}"
                return f"{place} {frame.f_code.co_name}{called}"
            frame, own = frame.f_back, False
        return ""

    def lines(self, most: int = 12) -> dict[str, dict[str, float]]:
        """Of each kind of threads the lines that were seen most: how many threads were there at a time, on average."""
        found: dict[str, dict[str, float]] = {}
        for (name, line), count in self._seen.most_common():
            lines = found.setdefault(name, {})
            if len(lines) < most:
                lines[line] = round(count / max(self.looks, 1), 3)
        return found


@contextmanager
def sampled(package: Path) -> Iterator[Sampled]:
    """Look at all threads while the block runs."""
    found, ended = Sampled(package), threading.Event()

    def watch() -> None:
        while not ended.wait(_EVERY_S):
            found.look()

    thread = threading.Thread(target=watch, name="sampler", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()
