"""Terminals in which a command runs, in a process or in the test's own: what it shows there."""

import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

ENOUGH_S = 50


class Shown:
    """A program in a terminal of its own.

    Attributes:
        process: the program.
        text: what it has shown, with all that moves the cursor.
    """

    def __init__(self, arguments, *, columns=80, cwd=None, **environment):
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        kept |= {"TERM": "xterm", "LC_ALL": "C.UTF-8", **environment}
        self.process = subprocess.Popen(
            [sys.executable, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env=kept,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self._fd, self._raw = ours, b""

    @property
    def text(self):
        return self._raw.decode(errors="replace")

    def read(self, until=None):
        """Read until a text is shown, or the program ends."""
        deadline = time.monotonic() + ENOUGH_S
        while until is None or until not in self.text:
            assert time.monotonic() < deadline, f"{until!r} is not shown: {self.text}"
            if not select.select([self._fd], [], [], 0.1)[0]:
                continue
            try:
                found = os.read(self._fd, 65536)
            except OSError:  # how Linux says that nobody has it open any more
                found = b""
            if not found:
                break
            self._raw += found
        return self.text

    def end(self):
        """Wait for the end; the exit code."""
        self.read()
        code = self.process.wait(ENOUGH_S)
        os.close(self._fd)
        return code


class Terminal(io.TextIOWrapper):
    """A terminal of some encoding, and what it was sent."""

    def __init__(self, encoding="utf-8"):
        super().__init__(io.BytesIO(), encoding, errors="replace", write_through=True)

    def isatty(self):
        return True

    @property
    def text(self):
        return self.buffer.getvalue().decode(self.encoding)

    def sent(self):
        return self.text.split("\r\x1b[K")[1:]


def settled(text):
    """The text that is left: of lines that are written over, the last."""
    return "\n".join(re.sub(r".*\r\x1b\[K", "", line) for line in text.replace("\r\n", "\n").split("\n"))


def states(text):
    """The texts that the line which is written over has shown, one after the other."""
    return [one for one in re.findall(r"\r\x1b\[K([^\r\n]*)", text) if one]
