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

__all__ = [
    "END_WITH_PARENT",
    "MARK",
    "Ran",
    "answer_of",
    "module_command",
    "module_environment",
    "run_bounded",
    "take_output",
    "write_answer",
]

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
    """Run a program, and kill it at a time limit; also kill what it started. Raises nothing.

    Args:
        command: program and arguments.
        timeout_s: seconds it may take.
        environ: its environment.
        folder: its working directory.
    """
    try:
        # Files, and no pipes: what the program started could hold a pipe open after the program's end.
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=dict(environ),
                cwd=folder,
                start_new_session=True,  # a separate group, which can be killed whole
            )
            late = _wait(process, timeout_s)
            return Ran(process.returncode, _end_of(output), _end_of(errors), late)
    except (OSError, ValueError) as error:
        return Ran(None, "", f"it could not be started: {error}", False)


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait for a process and kill its group; True if the time limit was reached."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return True
    else:
        return False
    finally:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        # A process that is stuck in a driver cannot be reaped; `subprocess.run` would wait for it for ever.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_REAP_S)


def _end_of(file: IO[bytes]) -> str:
    file.seek(max(file.seek(0, os.SEEK_END) - _MOST_BYTES, 0))
    return file.read(_MOST_BYTES).decode("utf-8", "replace")


def take_output() -> int:
    """Take standard output for answers: a descriptor of it. What libraries print goes to standard error from now on."""
    output = os.dup(1)
    os.dup2(2, 1)
    return output


def write_answer(output: int, values: Mapping[str, Any]) -> None:
    """Write an answer to the descriptor of `take_output`, on a new line also after text that was printed before."""
    os.write(output, f"\n{MARK}{json.dumps(values)}\n".encode())


def answer_of(ran: Ran) -> dict[str, Any]:
    """The last answer that a program has written; empty without one."""
    for line in reversed(ran.output.splitlines()):
        if line.startswith(MARK):
            with contextlib.suppress(ValueError):  # the last line may have been cut off
                found: dict[str, Any] = json.loads(line.removeprefix(MARK))
                return found
    return {}
