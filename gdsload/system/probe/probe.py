"""The call that runs the probing process, and the answers that this process has had."""

from __future__ import annotations

import dataclasses
import os
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial

from gdsload.system.probe.known_bugs import known_bug
from gdsload.system.probe.process import Ran, answer_of, module_command, module_environment, run_bounded
from gdsload.system.probe.result import CufileProbe, Status
from gdsload.system.probe.tree import Tree

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
_child = partial(module_command, "gdsload.system.probe.child")


def ask_cufile(
    file: str,
    device: str = "cuda:0",
    timeout_s: float = 60.0,
    *,
    command: Callable[[str, str], list[str]] = _child,
    despite_bugs: bool = False,
) -> CufileProbe:
    """Find out in a separate process how cuFile reads a file of this file system into this GPU. Raises nothing.

    The file has 4 KiB or more: cuFile reads a part of a block by another path. The process may take `timeout_s`, as
    starting CUDA takes several seconds, and more on a busy machine. `command` makes its command; for tests.

    If a read is known to hang the machine, the trial is skipped unless `despite_bugs` is set.
    """
    start, bug = time.monotonic(), None if despite_bugs else known_bug(Tree())
    if bug is not None and bug.hangs:
        return CufileProbe("skipped", f"{bug.what}. {bug.remedy}")
    try:
        with tempfile.TemporaryDirectory(prefix="gdsload-", ignore_cleanup_errors=True) as folder:
            log = os.path.join(folder, "cufile.log")
            # Else cuFile writes its log into the working directory. A folder in place of a file's name disables it.
            environ = module_environment(os.environ) | {"CUFILE_LOGFILE_PATH": log}
            for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
                environ.pop(name, None)  # the buffer must be plain CUDA memory, as gdsload's slots are
            asked = command(os.path.realpath(file), device)
            found = _judge(run_bounded(asked, timeout_s=timeout_s, environ=environ, folder=folder), timeout_s)
            lines = [line.strip() for line in (Tree().text(log, 2**20) or "").splitlines() if line.strip()]
    except OSError as error:
        return CufileProbe("crashed", f"there is no temporary folder: {error}")
    return dataclasses.replace(found, log=tuple(lines[-_LOG_LINES:]), seconds=round(time.monotonic() - start, 3))


def probe_cufile(
    file: str, device: str = "cuda:0", *, ask: Callable[[str, str], CufileProbe] = ask_cufile
) -> CufileProbe:
    """The answer of `ask_cufile`, which is called once in a process for each drive and device.

    The first call takes seconds. Later calls get its answer; those in other threads meanwhile ask, too. `ask` is for
    tests.
    """
    try:
        drive: _Drive = os.stat(file).st_dev, device
    except OSError:
        drive = file, device
    if drive not in _known:  # without a lock, for which a process that is forked meanwhile would wait for ever
        _known[drive] = ask(file, device)
    return _known[drive]


def _judge(ran: Ran, timeout_s: float) -> CufileProbe:
    known = answer_of(ran)
    if "status" in known:
        return CufileProbe(**known)
    doing, last = _DOING[known.get("stage", "start")], ran.errors.strip().rpartition("\n")[2][:300]
    status: Status = "crashed"
    if ran.timed_out:
        status, reason = "timeout", f"no answer within {timeout_s:g} s while {doing}"
    elif ran.code is None:
        reason = last
    elif ran.code < 0:
        reason = f"{signal.strsignal(-ran.code)} while {doing}: {last}"
    else:
        status, reason = "garbage", f"exit status {ran.code} without an answer while {doing}: {last}"
    if known.get("stage") == _OPTIONAL:
        status, reason = "ok", f"{known['reason']}; no batch of reads is made: {reason}"
    return CufileProbe(**{**known, "status": status, "reason": reason})
