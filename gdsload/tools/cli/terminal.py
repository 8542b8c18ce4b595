"""What commands show: text that does no harm to a terminal, and how far they are."""

from __future__ import annotations

import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from gdsload.system.units import format_bytes

__all__ = ["Bar", "Terminated", "ended_by_signals", "plain", "say", "table"]

_CELLS = 20
_EVERY_S = 0.1


def plain(text: str) -> str:
    """What a terminal may be sent: what comes from files must not move its cursor."""
    return "".join(char if char.isprintable() else " " for char in text)


def say(text: str, stream: TextIO | None = None) -> None:
    """Print, whatever the terminal's encoding: names of files and models, and arrows, need not be in it."""
    stream = stream or sys.stdout
    encoding = stream.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), file=stream)


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does."""


@contextmanager
def ended_by_signals() -> Iterator[Callable[[], None]]:
    """Have SIGTERM raise `Terminated` in here, as Ctrl-C raises KeyboardInterrupt; signals are the main thread's.

    Yields:
        What raises it once more. Python only prints what is raised at the end of an object, by which an import or a
        collection of garbage comes along at any time; so who is at work calls this now and then.
    """
    struck: list[KeyboardInterrupt] = []

    def again() -> None:
        if struck:
            raise struck[0]

    def strike(number: int, _: object) -> None:
        struck.append(Terminated() if number == signal.SIGTERM else KeyboardInterrupt())
        again()

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) not in (signal.SIG_IGN, None):  # as of what a shell script starts by `&`
                before[number] = signal.signal(number, strike)
    try:
        yield again
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Bar:
    """A line that shows how far something is; on a terminal it is written over, elsewhere it is left out.

    Args:
        stream: where it is shown.
        clock: what time it is, in seconds.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock, self._shown = stream, clock, stream.isatty()
        self._began = clock()
        self._before: tuple[int, int, int] | None = None
        self._last = -_EVERY_S

    def show(self, done: int, of: int, *, samples: int | None = None, nbytes: int) -> None:
        """Show it, a few times a second at most, and always what is complete.

        Args:
            done: how much is done, in whatever unit.
            of: how much there is.
            samples: how many samples that was, if it is known.
            nbytes: how many bytes that was.
        """
        now = self._clock()
        if not self._shown or (now - self._last < _EVERY_S and done < of):
            return
        if self._before is None:  # what an earlier run has done tells nothing of the rate
            self._before = done, nbytes, samples or 0
        self._last = now
        seconds = now - self._began
        made = done - self._before[0]
        share = done / of if of else 1.0
        words = [f"{'█' * round(_CELLS * share):░<{_CELLS}} {int(100 * share)} %"]
        if samples is not None:
            words.append(f"{samples} samples")
        words.append(format_bytes(nbytes))
        if made and seconds > 0:
            if samples is not None:
                words.append(f"{(samples - self._before[2]) / seconds:.0f} samples/s")
            words.append(f"{format_bytes((nbytes - self._before[1]) / seconds)}/s")
            words.append(f"{_duration((of - done) * seconds / made)} left")
        self._write(", ".join(words))

    def _write(self, text: str) -> None:
        encoding = self._stream.encoding or "utf-8"
        if "█".encode(encoding, "replace") == b"?":
            text = text.replace("█", "#").replace("░", ".")
        width = shutil.get_terminal_size().columns - 1  # a longer line would wrap, and stay
        self._stream.write(f"\r\x1b[K{text[:width]}")
        self._stream.flush()

    def close(self) -> None:
        """Take the line away."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def _duration(seconds: float) -> str:
    """``"42 s"``, ``"3:07 min"``, ``"26:03 h"``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table with columns of one width each; all rows are as long."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
