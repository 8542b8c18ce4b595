"""Programs that may hang or crash, run with a time limit, and the answers of those that are gdsload's.

An answer is a line of standard output that begins with `MARK`, with a JSON object; of several the last one counts. So
nothing that a library prints is taken for one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

END_WITH_PARENT = "import ctypes; ctypes.CDLL(None).prctl(1, 9)"
"""The beginning of a program for ``python -c`` that is killed when the thread that started it ends: a program that
spins in a library must not outlive its parent. 1 is PR_SET_PDEATHSIG, include/uapi/linux/prctl.h; 9 is SIGKILL."""
MARK = "gdsload-answer: "
_MOST_BYTES = 2**20
_REAP_S = 1.0


@dataclass(frozen=True, slots=True)
class Ran:
    """The end of a program, and what it wrote.

    Attributes:
        code: its exit status, negative for the signal that ended it; None if it could not be started or did not end.
        output: the last mebibyte that it wrote to standard output.
        errors: the same for standard error, or why it could not be started.
        timed_out: whether it was killed at the time limit.
    """

    code: int | None
    output: str
    errors: str
    timed_out: bool


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs one of gdsload's modules in this Python, and ends with the thread that starts it."""
    # Before anything is imported, which may take long; and the parent may have ended before that.
    program = (
        f"{END_WITH_PARENT}; import os; os.getppid() == {os.getpid()} or os._exit(1); "
        f"import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    # -P: the working folder may hold untrusted data, and nothing in it may be imported.
    return [sys.executable, "-P", "-c", program, *arguments]


def module_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment in which `module_command` finds this same gdsload, from any working directory."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
    paths = [package, *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**environ, "PYTHONPATH": os.pathsep.join(paths)}


def run_bounded(
    command: Sequence[str], *, timeout_s: float, environ: Mapping[str, str], folder: str | None = None
) -> Ran:
    """Run a program, and kill it after `timeout_s` seconds, with all that it started. Raises nothing."""
    try:
        # Files, and no pipes: what the program started could hold a pipe open after the program's end.
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=environ,
                cwd=folder,
                start_new_session=True,  # a group that is killed whole, and that no Ctrl-C in the terminal reaches
            )
            late = False
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                late = True
            finally:  # also after Ctrl-C, and what a program that has ended has left
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                # Not `subprocess.run`, which waits for ever for a process that is stuck in a driver.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_REAP_S)
            return Ran(process.returncode, _end_of(output), _end_of(errors), late)
    except (OSError, ValueError) as error:
        return Ran(None, "", f"it could not be started: {error}", False)


def _end_of(file: IO[bytes]) -> str:
    file.seek(max(file.seek(0, os.SEEK_END) - _MOST_BYTES, 0))
    return file.read(_MOST_BYTES).decode("utf-8", "replace")


def write_answer(values: Mapping[str, Any]) -> None:
    """Write an answer, on a new line also after text that was printed before."""
    os.write(1, f"\n{MARK}{json.dumps(values)}\n".encode())


def answer_of(ran: Ran) -> dict[str, Any]:
    """The last answer that a program has written; empty without one."""
    for line in reversed(ran.output.splitlines()):
        if line.startswith(MARK):
            with contextlib.suppress(ValueError):  # the last line may have been cut off
                found: dict[str, Any] = json.loads(line.removeprefix(MARK))
                return found
    return {}
