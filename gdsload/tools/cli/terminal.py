"""Output of commands: text that is safe for a terminal and fits it, and the progress of a run."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from gdsload.errors import WriteError
from gdsload.system.units import counted, format_bytes

_CELLS = 20
_EVERY_S = 0.1
_WIDEST = 120
"""Longer lines are hard to read."""
_COLOURS = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "bold": "1"}


def plain(text: str) -> str:
    """The text with spaces for all characters that are not printable, as text of files must not move the cursor."""
    return "".join(char if char.isprintable() else " " for char in text)


def safe_streams() -> None:
    """Make the streams take all texts.

    Names of files and models, and arrows, need not be in a terminal's encoding. Streams that were closed when the
    program began (a daemon, pythonw, ``2>&-``) drop all texts.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:  # else the next file gets this number, and what a C library prints is written into it
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number, which this one is
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or stream.closed:
            setattr(sys, name, io.StringIO())
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def say(text: str, stream: TextIO | None = None) -> None:
    """Print at once, so that an error is raised while it can be reported.

    A closed pipe (``gdsload inspect … | head``) is no error. Text that cannot be written to the error stream is lost:
    the exit code shows the error then.

    Raises:
        WriteError: if it cannot be written, as where it goes to a file on a full disk.
    """
    stream = stream or sys.stdout
    try:
        print(text, file=stream, flush=True)
    except OSError as error:
        if stream is sys.stderr:
            return
        if stream is sys.stdout:
            with contextlib.suppress(OSError):
                stream.close()  # else Python writes what is left at its exit, and shows a traceback
            sys.stdout = io.StringIO()
        if isinstance(error, BrokenPipeError):
            return
        raise WriteError(
            f"the output cannot be written: {error.strerror}", remedy="Make room where it goes, or send it elsewhere."
        ) from error


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal whose lines can be overwritten."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def terminal_width(stream: TextIO) -> int | None:
    """The number of columns of a terminal; None if the stream is none, and programs read it."""
    return min(shutil.get_terminal_size().columns, _WIDEST) if stream.isatty() else None


def paint(text: str, colour: str, stream: TextIO) -> str:
    """The text in a colour, if the stream shows colours and NO_COLOR is not set."""
    if not is_terminal(stream) or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def wrapped(text: str, width: int | None, *, first: str = "", rest: str = "") -> list[str]:
    """Lines of a width, that break between words alone.

    Args:
        text: what they hold.
        width: how long they are at most, but for a word that is longer; None: one line.
        first: what the first one begins with.
        rest: what the others begin with.
    """
    if width is None:
        return [first + text]
    found = textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return found or [first.rstrip()]


def say_wrapped(text: str, *, first: str = "", rest: str = "") -> None:
    """Print a text, which may be of files, in lines that fit the terminal; see `wrapped`."""
    for line in wrapped(plain(text), terminal_width(sys.stdout), first=first, rest=rest):
        say(line)


class Bar:
    """A line that shows the progress of something; on a terminal it is overwritten, elsewhere it is left out.

    Args:
        stream: where it is shown.
        clock: returns the time in seconds.
        hidden: whether it is left out on a terminal, too.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic, *, hidden: bool = False) -> None:
        self._stream, self._clock, self._shown = stream, clock, is_terminal(stream) and not hidden
        self._before: tuple[float, float, int] | None = None
        self._last = -_EVERY_S

    def say(self, text: str) -> None:
        """Show the present step, at once."""
        if self._shown:
            self._write([plain(text)])

    def show(
        self, done: float, of: float, *, what: str = "", samples: int | None = None, nbytes: int | None = None
    ) -> None:
        """Show the progress, a few times a second at most, and always at the end.

        The time that is left comes first. Parts that do not fit the terminal are left out, the last one first.

        Args:
            done: how much is done, in any unit.
            of: how much there is.
            what: what is being done.
            samples: how many samples that was, if it is known.
            nbytes: how many bytes that was, likewise.
        """
        now = self._clock()
        if not self._shown or (now - self._last < _EVERY_S and done < of):
            return
        if self._before is None:  # an earlier run's work does not count for the rate
            self._before = now, done, nbytes or 0
        self._last = now
        seconds, made = now - self._before[0], done - self._before[1]
        share = min(done / of, 1.0) if of else 1.0
        full, empty = "█░" if "utf" in (self._stream.encoding or "utf-8").lower() else "#."
        words = [f"{full * int(_CELLS * share):{empty}<{_CELLS}} {int(100 * share)} %"]
        if what:
            words.append(what)
        if samples is not None:
            words.append(counted(samples, "sample"))
        if nbytes is not None:
            words.append(format_bytes(nbytes))
        if made > 0 and seconds > 0:
            words.insert(0, f"{_duration((of - done) * seconds / made)} left")
            if nbytes is not None:
                words.append(f"{format_bytes((nbytes - self._before[2]) / seconds)}/s")
        self._write(words)

    def _write(self, words: list[str]) -> None:
        width = shutil.get_terminal_size().columns - 1  # a longer line would wrap, and stay
        while len(", ".join(words)) > width and len(words) > 1:
            words = words[:-1]
        self._send(f"\r\x1b[K{', '.join(words)[:width]}")

    def close(self) -> None:
        """Take the line away."""
        if self._shown:
            self._send("\r\x1b[K")

    def _send(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:  # the terminal has gone; the work goes on
            self._shown = False


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
