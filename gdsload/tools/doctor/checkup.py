"""The run of all checks, in threads with a time limit.

The threads are daemons, so a thread that hangs in the kernel (on a file system without its server) ends with the
process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gdsload.errors import DatasetNotFoundError
from gdsload.system.probe import CufileProbe
from gdsload.system.probe.known_bugs import driver_version
from gdsload.system.version import __version__
from gdsload.tools.doctor import conditions, cufile_checks, gpu_checks, machine_checks, package_checks, storage_checks
from gdsload.tools.doctor.block import Volume
from gdsload.tools.doctor.context import Check, Context, DataPlace, locate
from gdsload.tools.doctor.finding import Finding, Report, clip, unknown
from gdsload.tools.doctor.system import System, TorchBuild
from gdsload.tools.doctor.trials import FileTrial, GpuTrial, temporary_file
from gdsload.tools.doctor.verdict import find_ways, judge

CHECKS = (
    *machine_checks.CHECKS,
    *gpu_checks.CHECKS,
    *cufile_checks.CHECKS,
    *conditions.CHECKS,
    *storage_checks.CHECKS,
    *package_checks.CHECKS,
)
_FILES_S = 5.0
_GRACE_S = 1.0
"""Seconds that reads of /proc, /sys and the path may take; they take milliseconds unless something hangs."""
_IMPORTS_S = 45.0
"""Each import of a package in a process has its own limit of 20 s; a check may import more than one."""

T = TypeVar("T")


def _start(call: Callable[[], T]) -> Future[T]:
    """Call a function in a daemon thread: it may hang, and an executor's would keep the process from ending."""
    future = Future[T]()

    def run() -> None:
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, name="gdsload-doctor", daemon=True).start()
    return future


def _result(future: Future[T], deadline: float, default: T) -> T:
    """The call's value, or `default` if it failed or is not there at the deadline (of the monotonic clock)."""
    try:
        return future.result(max(deadline - time.monotonic(), 0))
    except Exception:  # checks say more themselves
        return default


def diagnose(
    path: str | os.PathLike[str] = ".",
    device: str | None = None,
    *,
    system: System | None = None,
    probe: bool | None = None,
    timeout_s: float = 30.0,
) -> Report:
    """Examine this machine for data at a path. Needs no root and leaves no file; problems become findings, not errors.

    Args:
        path: the file or folder of the data.
        device: the device, as torch names it; None for the current accelerator.
        system: the machine; None for this one.
        probe: whether to make a trial read with cuFile; None makes it unless a read is known to hang this machine.
        timeout_s: time limit in seconds for each process that uses CUDA.

    Raises:
        DatasetNotFoundError: if there is nothing at the path.
    """
    system = system or System()
    start = time.monotonic()
    asked = str(Path(path).absolute())  # links are not followed: the file system may not answer
    place = _result(_start(lambda: locate(system, asked)), start + _FILES_S, DataPlace(asked, None))
    if place.exists is False:
        raise DatasetNotFoundError("there is no such file or folder", file=asked, remedy="Name the folder of the data.")
    build = _result(_start(system.calls.torch_build), start + _FILES_S, TorchBuild("", "", ""))
    no_probe = CufileProbe("skipped", "the trial read did not end in time")
    context = Context(system, place, build, device or "", GpuTrial(status="skipped"), no_probe)
    ends = time.monotonic() + timeout_s + _FILES_S
    trying = _start(lambda: _with_trials(context, probe, timeout_s, ends))
    context = _result(trying, ends + _GRACE_S, context)
    findings = _check(context)
    return Report(_machine(context), findings, judge(findings), find_ways(findings))


def _with_trials(context: Context, probe: bool | None, timeout_s: float, deadline: float) -> Context:
    """Try the GPU, files and cuFile at the same time, with one file of each mount."""
    calls, tree, volumes = context.system.calls, context.system.tree, context.place.volumes
    device = f"cuda:{_rank(context.system)}" if context.device in ("", "cuda") else context.device
    ask_gpu = not context.wants_host and bool(context.torch.accelerator)
    late_gpu = GpuTrial(status="timeout", error="torch and CUDA did not answer in time")
    refused = _refused(context, probe, ask_gpu=ask_gpu)

    def ask_cufile(file: str) -> CufileProbe:
        why = refused or ("" if file else "there is no file to read, and none can be created there")
        return CufileProbe("skipped", why) if why else calls.probe(file, device, timeout_s)

    with contextlib.ExitStack() as stack:
        files = [
            tree.at(volume.file) if volume.file else stack.enter_context(temporary_file(tree.at(volume.folder)))
            for volume in volumes
        ]
        gpu = _start(lambda: calls.try_gpu(files[0] if files else "", device, timeout_s) if ask_gpu else context.gpu)
        trials = [_start(partial(calls.try_file, file) if file else FileTrial) for file in files]
        probes = [_start(partial(ask_cufile, file)) for file in files]
        found = [_result(probe, deadline, context.probe) for probe in probes]
        tried = tuple(
            dataclasses.replace(volume, trial=_result(trial, deadline, FileTrial(file)))
            for volume, file, trial in zip(volumes, files, trials, strict=True)
        )
        return dataclasses.replace(
            context,
            place=dataclasses.replace(context.place, volumes=tried),
            gpu=_result(gpu, deadline, late_gpu),
            # Loaders go by cuFile's worst result.
            probe=min(found, key=lambda probe: (probe.status == "ok", probe.proven), default=context.probe),
        )


def _refused(context: Context, probe: bool | None, *, ask_gpu: bool) -> str:
    """The reason why no trial read with cuFile is made, or empty."""
    if probe is False:
        return "--no-probe was passed"
    if context.bug is not None and context.bug.hangs and not probe:
        return context.bug.what
    return "" if ask_gpu or context.has_gpu else "there is no NVIDIA GPU to read into"


def _rank(system: System) -> int:
    """The index of the GPU that a loader uses: LOCAL_RANK, unless the launcher shows each process only one GPU."""
    rank, visible = system.environ.get("LOCAL_RANK", ""), system.environ.get("CUDA_VISIBLE_DEVICES", "")
    hidden = visible and rank.isdecimal() and int(rank) >= len(visible.split(","))
    return int(rank) if rank.isdecimal() and not hidden else 0


def _check(context: Context) -> tuple[Finding, ...]:
    """All findings. Each check has its own thread, so a check that hangs only loses its own finding."""
    late = unknown("the check did not end in time")
    tasks = {name: _start(partial(_attempt, check, context)) for name, check in CHECKS}
    deadline = time.monotonic() + _FILES_S
    found = {
        name: _result(task, deadline + _IMPORTS_S * name.startswith("packages."), late) for name, task in tasks.items()
    }
    return tuple(dataclasses.replace(finding, check=name) for name, finding in found.items())


def _attempt(check: Check, context: Context) -> Finding:
    try:
        return check(context)
    except Exception as error:  # a check that fails is a finding, never a traceback
        return unknown(f"the check failed: {clip(f'{type(error).__name__}: {error}')}")


def _machine(context: Context) -> dict[str, Any]:
    """The facts at the start of the report; the same keys on every machine."""
    tree, volume = context.system.tree, next(iter(context.place.volumes), Volume(""))
    driver, is_open = driver_version(tree)
    address = context.gpu_address()
    return {
        "gdsload": __version__,
        "path": context.place.path,
        "device": context.device or None,
        "kernel": clip(tree.text("/proc/sys/kernel/osrelease", 256) or ""),
        "architecture": context.system.architecture,
        "container": context.container,
        "python": platform.python_version(),
        "torch": context.torch.version,
        "cuda": context.torch.cuda or None,
        "driver": driver or None,
        "open_driver": is_open,
        "gpu": clip(context.gpu_name()) or (address and f"NVIDIA GPU at {address}") or None,
        "libcufile": clip(context.probe.version) or None,
        "filesystem": clip(volume.mount.kind) if volume.mount else None,
        "device_of_data": clip(volume.device) or None,
        "drives": [block.name for block in context.place.drives],
    }
