"""Running a program that may hang, crash or flood: bounded in time and in output, and it never raises."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

__all__ = [
    "END_WITH_PARENT",
    "Loading",
    "Ran",
    "module_command",
    "module_environment",
    "run_bounded",
]

END_WITH_PARENT = "import ctypes; ctypes.CDLL(None).prctl(1, 9)"
"""The beginning of a program for ``python -c`` that is killed when the thread that started it ends: a program that
spins in a library must not outlive its parent. 1 is PR_SET_PDEATHSIG, include/uapi/linux/prctl.h; 9 is SIGKILL."""
_MAX_BYTES = 2**20
_POLL_S = 0.05
_REAP_S = 1.0


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended.

    Attributes:
        code: its exit status, negative for the signal that ended it; None if it could not be started or did not end.
        output: what it wrote to standard output, as far as it was read.
        errors: the same for standard error, or why it could not be started.
        timed_out: whether it was killed because its time was up.
        seconds: how long it took.
    """

    code: int | None
    output: str
    errors: str
    timed_out: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Loading:
    """How long a program may take to load, before its time limit begins.

    Attributes:
        seconds: how long it may take.
        still: whether it is still loading, from what it has written to standard error so far.
    """

    seconds: float
    still: Callable[[str], bool]


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
    command: Sequence[str],
    *,
    timeout_s: float,
    environ: Mapping[str, str],
    folder: str | None = None,
    loading: Loading | None = None,
) -> Ran:
    """Run a program to its end, or kill it and all it started when its time is up or it writes too much.

    Args:
        command: program and arguments.
        timeout_s: seconds it may take, from when it has loaded.
        environ: its environment.
        folder: its working directory.
        loading: how long it may take to load; None for a program whose loading counts like the rest.
    """
    start = time.monotonic()
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environ),
            cwd=folder,
            start_new_session=True,  # a group of its own, which can be killed whole
        )
    except (OSError, ValueError) as error:
        return Ran(None, "", f"it could not be started: {error}", False, time.monotonic() - start)
    try:
        output, errors, late = _read(process, start, timeout_s, loading)
    finally:
        _end(process)
    return Ran(process.returncode, output, errors, late, time.monotonic() - start)


def _read(
    process: subprocess.Popen[bytes], start: float, timeout_s: float, loading: Loading | None
) -> tuple[str, str, bool]:
    deadline = start + (timeout_s if loading is None else loading.seconds)
    streams = [stream for stream in (process.stdout, process.stderr) if stream is not None]
    parts = {stream.fileno(): bytearray() for stream in streams}
    with selectors.DefaultSelector() as selector:
        for fd in parts:
            os.set_blocking(fd, False)
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map() and time.monotonic() < deadline:
            ended = process.poll() is not None
            ready = selector.select(0 if ended else _POLL_S)
            for key, _ in ready:
                part = os.read(key.fd, 65536)
                parts[key.fd] += part
                if not part:
                    selector.unregister(key.fd)
            if ended and not ready:
                break  # a process that it started still holds the pipe
            if any(len(part) > _MAX_BYTES for part in parts.values()):
                return "", f"it wrote more than {_MAX_BYTES} bytes", False
            if loading is not None and ready and not loading.still(_text(parts[streams[-1].fileno()])):
                loading, deadline = None, time.monotonic() + timeout_s
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(deadline - time.monotonic(), 0))
    output, errors = map(_text, parts.values())
    return output, errors, process.poll() is None


def _text(part: bytearray) -> str:
    return part.decode("utf-8", "replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    # A process that is stuck in the kernel cannot be reaped; it is not waited for.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_S)
