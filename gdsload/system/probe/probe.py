"""The call that runs the probing process, and the answers that this process has had."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable

from gdsload.system.probe.library import find_libraries
from gdsload.system.probe.process import Ran, answer_of, module_command, module_environment, run_bounded
from gdsload.system.probe.result import CufileProbe, Status
from gdsload.system.probe.tree import Tree
from gdsload.system.probe.trial_file import trial_file

__all__ = ["ask_cufile", "probe_cufile"]

_LOG_LINES = 12
_DOING = {
    "start": "starting Python and importing torch",
    "library": "loading libcufile",
    "cuda": "initialising CUDA",
    "driver-open": "opening cuFile's driver (cuFileDriverOpen)",
    "register": "registering the file (cuFileHandleRegister)",
    "read": "reading (cuFileRead)",
    "batch": "reading many parts by one call (cuFileBatchIOSubmit)",
}
_OPTIONAL = "batch"
"""The stage that may fail, hang or crash: the path is proven by then, and gdsload can read without batches."""

_Drive = tuple[int | str, str]
_known: dict[_Drive, CufileProbe] = {}
_locks: dict[tuple[int, _Drive], threading.Lock] = {}


def ask_cufile(
    path: str | os.PathLike[str],
    device: str = "cuda:0",
    timeout_s: float = 60.0,
    *,
    command: Callable[[str, str], list[str]] | None = None,
) -> CufileProbe:
    """Find out in a separate process how cuFile reads a file of this file system into this GPU. Raises nothing.

    Args:
        path: a file, or a folder that holds one or may be written to.
        device: the GPU, as torch names it.
        timeout_s: seconds that the probing process may take. Starting CUDA takes several of them, and more on a busy
            machine.
        command: makes the probing process's command from file and device; for tests.
    """
    start = time.monotonic()
    if command is None and not find_libraries(Tree(), os.environ, sys.path):
        return CufileProbe("missing", "libcufile.so.0 is in none of the places where libraries are", "library")
    with trial_file(os.path.realpath(path)) as file:
        if file is None:
            return CufileProbe("skipped", "there is no file to read, and none can be made there")
        try:
            ran, log = _run((command or _child)(file, str(device)), timeout_s)
        except OSError as error:
            return CufileProbe("crashed", f"there is no temporary folder: {error}")
    return dataclasses.replace(_judge(ran, timeout_s), log=log, seconds=round(time.monotonic() - start, 3))


def probe_cufile(
    path: str | os.PathLike[str], device: str = "cuda:0", *, ask: Callable[[str, str], CufileProbe] = ask_cufile
) -> CufileProbe:
    """The answer of `ask_cufile`, which is called once in a process for each drive and device.

    The first call takes seconds. Later calls, and those in other threads at the same time, get its answer.

    Args:
        path: a file, or a folder that holds one or may be written to.
        device: the GPU, as torch names it.
        ask: asks; for tests.
    """
    place = os.path.realpath(path)
    drive = _drive(place), str(device)
    # A lock for each process: a forked one would wait for a thread that only its parent has.
    with _locks.setdefault((os.getpid(), drive), threading.Lock()):
        found = _known.get(drive) or ask(place, str(device))
        if found.status != "skipped":  # without a file, which may exist in a moment
            _known[drive] = found
    return found


def _drive(place: str) -> int | str:
    """The device number of the file system that a path is on; the path if nothing is there."""
    try:
        return os.stat(place).st_dev
    except (OSError, ValueError):
        return place


def _child(file: str, device: str) -> list[str]:
    return module_command("gdsload.system.probe.child", file, device)


def _run(command: list[str], timeout_s: float) -> tuple[Ran, tuple[str, ...]]:
    """Run the probing process; its end, and the last lines of cuFile's log."""
    with tempfile.TemporaryDirectory(prefix="gdsload-", ignore_cleanup_errors=True) as folder:
        log = os.path.join(folder, "cufile.log")
        # Else cuFile writes cufile.log into the working directory. It expects a file's name: a folder disables logging.
        environ = module_environment(os.environ) | {"CUFILE_LOGFILE_PATH": log}
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            environ.pop(name, None)  # the buffer must be plain CUDA memory, as gdsload's slots are
        ran = run_bounded(command, timeout_s=timeout_s, environ=environ, folder=folder)
        lines = (Tree().text(log, 2**20) or "").splitlines()
    return ran, tuple(line.strip() for line in lines if line.strip())[-_LOG_LINES:]


def _judge(ran: Ran, timeout_s: float) -> CufileProbe:
    known = answer_of(ran)
    if "status" in known:
        return CufileProbe(**known)
    stage = known.get("stage", "start")
    doing = _DOING[stage]
    last = next((f": {line[:300]}" for line in reversed(ran.errors.splitlines()) if line.strip()), "")

    def ended(status: Status, reason: str) -> CufileProbe:
        if stage == _OPTIONAL:
            status, reason = "ok", f"{known['reason']}; no batch of reads is made: {reason}"
        return CufileProbe(**{**known, "status": status, "reason": reason})

    if ran.timed_out:
        return ended("timeout", f"no answer within {timeout_s:g} s while {doing}")
    if ran.code is None:
        return ended("crashed", ran.errors[:300])
    if ran.code < 0:
        return ended("crashed", f"{_signal_name(-ran.code)} while {doing}{last}")
    what = f"exit status {ran.code}" if ran.code else "no answer that can be read"
    return ended("garbage", f"{what} while {doing}{last}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
