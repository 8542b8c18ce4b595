"""Output of commands: text that is safe for a terminal and fits it, and the progress of a run."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import textwrap
import time
from collections.abc import Callable
from typing import TextIO

from gdsload.errors import WriteError
from gdsload.system.units import counted, format_bytes

_CELLS = 20
_EVERY_S = 0.1
_LOG_EVERY_S = 30.0
"""Seconds between the lines of a log. Shorter runs leave none."""
WIDEST = 120
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


def columns() -> int:
    """The width of text in columns: COLUMNS, or the width of the terminal of any standard stream, or 80.

    So ``gdsload doctor | less`` fits the terminal of `less`.
    """
    with contextlib.suppress(ValueError):
        if (wished := int(os.environ.get("COLUMNS", ""))) > 0:
            return wished
    for fd in (1, 2, 0):
        with contextlib.suppress(OSError):
            if (found := os.get_terminal_size(fd).columns) > 0:
                return found
    return 80


def page_width() -> int:
    """The width of text for people, on a terminal or not."""
    return min(columns(), WIDEST)


def terminal_width(stream: TextIO) -> int | None:
    """The width of lines on a terminal; None if the stream is not a terminal, because programs read whole lines."""
    return page_width() if stream.isatty() else None


def paint(text: str, colour: str, stream: TextIO) -> str:
    """Colour a text if the stream shows colours. NO_COLOR turns them off; FORCE_COLOR turns them on in pipes, too."""
    wanted = is_terminal(stream) or os.environ.get("FORCE_COLOR", "0") not in ("", "0")
    if not wanted or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def wrapped(text: str, width: int | None, *, first: str = "", rest: str = "") -> list[str]:
    """Lines of a width, or one line without one, that break between words alone; a longer word is not broken.

    The first begins with `first`, and all others with `rest`.
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
    """The progress of something: a line that is overwritten on a terminal; in a log, a line every half minute."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic, *, hidden: bool = False) -> None:
        self._stream, self._clock, self._shown = stream, clock, not hidden
        self._overwrites = is_terminal(stream)
        self._before: tuple[float, float, int] | None = None
        self._begun, self._what = clock(), ""
        self._last = -_EVERY_S if self._overwrites else self._begun

    def say(self, text: str) -> None:
        """Show the current step at once; a log does not show it."""
        if self._shown and self._overwrites:
            self._write([plain(text)])

    def show(
        self, done: float, of: float, *, what: str = "", samples: int | None = None, nbytes: int | None = None
    ) -> None:
        """Show the progress, a few times a second at most, and at once at the end and where something else is done.

        The time that is left comes first. Parts that do not fit the terminal are left out, the last one first. `done`
        of `of` is in any unit; `samples` and `nbytes` are shown beside it if they are known.
        """
        now = self._clock()
        if self._before is None:  # an earlier run's work does not count for the rate
            self._before = now, done, nbytes or 0
        at_once = self._overwrites and (done >= of or what != self._what)
        every = _EVERY_S if self._overwrites else _LOG_EVERY_S
        if not self._shown or (now - self._last < every and not at_once):
            return
        self._last, self._what = now, what
        seconds, made = now - self._before[0], done - self._before[1]
        share = min(done / of, 1.0) if of else 1.0
        full, empty = "█░" if "utf" in (self._stream.encoding or "utf-8").lower() else "#."
        bar = f"{full * int(_CELLS * share):{empty}<{_CELLS}} " if self._overwrites else ""
        words = [f"{bar}{int(100 * share)} %"]
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
        if not self._overwrites:
            self._send(f"after {_duration(self._last - self._begun)}: {', '.join(words)}\n")
            return
        width = columns() - 1  # a longer line would wrap, and stay
        while len(", ".join(words)) > width and len(words) > 1:
            words = words[:-1]
        self._send(f"\r\x1b[K{', '.join(words)[:width]}")

    def close(self) -> None:
        """Take the line away."""
        if self._shown and self._overwrites:
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


def elapsed(seconds: float) -> str:
    """``"31 ms"``, ``"4.2 s"``, then as whole seconds, minutes and hours."""
    if seconds < 0.0995:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.2g} s" if seconds < 9.95 else _duration(seconds)
