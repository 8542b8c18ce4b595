"""Running the probing process, and caching its answer."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gdsload.system.probe import probe_cache as cache
from gdsload.system.probe.child import STAGE
from gdsload.system.probe.library import Library, find_libraries, read_config
from gdsload.system.probe.mounts import find_mount, read_mounts
from gdsload.system.probe.process import Loading, Ran, module_command, module_environment, run_bounded
from gdsload.system.probe.result import CufileProbe
from gdsload.system.probe.tree import Tree
from gdsload.system.probe.trial_file import trial_file

__all__ = ["cache_key", "probe_cufile"]

_CHILD = "gdsload.system.probe"
_LOG_LINES = 12
_DOING = {
    "start": "starting Python and importing torch",
    "library": "loading libcufile",
    "cuda": "initialising CUDA",
    "driver-open": "opening cuFile's driver (cuFileDriverOpen)",
    "register": "registering the file (cuFileHandleRegister)",
    "read": "reading (cuFileRead)",
    "batch": "reading many parts by one call (cuFileBatchIOSubmit)",
    "done": "ending",
}
_OPTIONAL = "batch"
"""What may fail, hang or crash: all that matters is known by then, and it is done without."""
_LOADING = ("start", "library", "cuda")
"""Stages in which cuFile is not called: if they take long, the machine is slow or many start CUDA at once."""

_Command = Callable[[str, str], list[str]]


def probe_cufile(
    path: str | os.PathLike[str],
    device: str = "cuda:0",
    *,
    timeout_s: float = 20.0,
    loading_s: float = 60.0,
    refresh: bool = False,
    command: _Command | None = None,
) -> CufileProbe:
    """Find out how cuFile reads a file of this file system into this GPU. Never raises, whatever it finds.

    The answer is cached on disk, keyed by everything that it depends on; the next call then returns in milliseconds.
    The first takes as long as starting a process with CUDA does: seconds, and little more than `loading_s` and
    `timeout_s` at most, or twice that while another process runs the same probe.

    Args:
        path: a file, or a folder that holds one or may be written to.
        device: the GPU, as torch names it.
        timeout_s: seconds that cuFile may take.
        loading_s: seconds that loading torch and the libraries and initialising CUDA may take before: on a busy
            machine, or from a network, that takes long and says nothing about cuFile.
        refresh: whether to probe even if the answer is known.
        command: makes the probing process's command from file and device; for tests.
    """
    place = os.path.realpath(path)
    folder = cache.cache_folder(os.environ)
    libraries = find_libraries(Tree(), os.environ, sys.path)
    key = cache_key(Tree(), os.environ, libraries, place, str(device))
    limits = (loading_s, timeout_s)
    if not refresh and (known := cache.load(folder, key, limits)) is not None:
        return dataclasses.replace(known, cached=True)
    with cache.locked(folder, key, loading_s + timeout_s):
        # Another rank may have probed while this one waited for the lock.
        if not refresh and (known := cache.load(folder, key, limits)) is not None:
            return dataclasses.replace(known, cached=True)
        if not libraries and command is None:
            probe = CufileProbe("missing", "libcufile.so.0 is in none of the places where libraries are", "library")
        else:
            with trial_file(place) as file:
                probe = _ask(file, str(device), limits, command or _child)
        if probe.status != "skipped":  # without a file, which may exist in a moment
            cache.store(folder, key, probe, limits)
    return probe


def _child(file: str, device: str) -> list[str]:
    return module_command(_CHILD, file, device)


def cache_key(
    tree: Tree, environ: Mapping[str, str], libraries: Sequence[Library], path: str, device: str
) -> dict[str, Any]:
    """Everything that a probe's answer depends on and that can be read without calling cuFile or CUDA."""
    try:
        status = os.stat(tree.at(path))
        number: str | None = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    except (OSError, ValueError):
        number = None
    mount = find_mount(read_mounts(tree), path, number)
    record = tree.text(f"/run/udev/data/b{mount.number}") if mount else None
    config = read_config(tree, environ)
    gpus = [
        (name, (tree.text(f"/proc/driver/nvidia/gpus/{name}/information") or "").split("\n", 1)[0])
        for name in tree.names("/proc/driver/nvidia/gpus")
    ]
    return {
        "driver": tree.text("/proc/driver/nvidia/version"),
        "driver parameters": _digest(tree.text("/proc/driver/nvidia/params")),
        "nvidia-fs": tree.text("/proc/driver/nvidia-fs/version"),
        "nvme multipath": tree.text("/sys/module/nvme_core/parameters/multipath"),
        "modules": tree.exists("/proc/modules"),
        "kernel": [platform.release(), tree.text("/proc/sys/kernel/random/boot_id")],
        "library": [[library.path, library.version, _stamp(tree, library.path)] for library in libraries],
        "mount": [mount.point, mount.root, mount.number, mount.kind, mount.source, mount.options] if mount else path,
        "udev": _digest(record),
        "gpus": gpus,
        "device": device,
        "config": [config.path, _digest(config.text)],
        "environment": {
            name: value
            for name, value in sorted(environ.items())
            if name.startswith("CUFILE_") or name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LD_LIBRARY_PATH")
        },
        "python": [sys.prefix, platform.python_version(), _packages(tree)],
    }


def _packages(tree: Tree) -> list[str]:
    """Folders of installed packages that the probing process uses, named with their versions."""
    starts = ("torch-", "cuda_bindings-")
    return sorted(
        {
            name
            for site in sys.path
            if site.startswith("/")
            for name in tree.names(site)
            if name.startswith(starts) and name.endswith(".dist-info")
        }
    )


def _digest(text: str | None) -> str | None:
    return None if text is None else hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _stamp(tree: Tree, path: str) -> list[int]:
    try:
        found = os.stat(tree.at(path))
    except (OSError, ValueError):
        return []
    return [found.st_size, found.st_mtime_ns]


def _ask(file: str | None, device: str, limits: tuple[float, float], command: _Command) -> CufileProbe:
    if file is None:
        return CufileProbe("skipped", "there is no file to read, and none can be made there")
    with tempfile.TemporaryDirectory(prefix="gdsload-", ignore_cleanup_errors=True) as folder:
        log = os.path.join(folder, "cufile.log")
        environ = module_environment(os.environ)
        # Else cuFile writes cufile.log into the working directory. It expects a file's name: a folder disables logging.
        environ |= {"CUFILE_LOGFILE_PATH": log}
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            environ.pop(name, None)  # the buffer must be plain CUDA memory, as gdsload's slots are
        loading_s, timeout_s = limits
        ran = run_bounded(
            command(file, device),
            timeout_s=timeout_s,
            environ=environ,
            folder=folder,
            loading=Loading(loading_s, lambda errors: _known_so_far(errors).stage in _LOADING),
        )
        lines = [line.strip() for line in (Tree().text(log, 2**20) or "").splitlines() if line.strip()][-_LOG_LINES:]
    probe = _judge(ran, limits)
    return dataclasses.replace(probe, log=tuple(lines), seconds=round(ran.seconds, 3), cached=False)


def _judge(ran: Ran, limits: tuple[float, float]) -> CufileProbe:
    said = [line for line in ran.errors.splitlines() if line.strip()]
    known = _known_so_far(ran.errors)
    doing = _DOING.get(known.stage, known.stage)
    last = next((f": {line[:300]}" for line in reversed(said) if not line.startswith(STAGE)), "")

    def ended(status: str, reason: str) -> CufileProbe:
        if known.stage == _OPTIONAL:
            return dataclasses.replace(
                known, status="ok", reason=f"{known.reason}; no batch of reads is made: {reason}"
            )
        return dataclasses.replace(known, status=status, reason=reason)

    if ran.timed_out:
        return ended("timeout", f"no answer within {limits[known.stage not in _LOADING]:g} s while {doing}")
    if ran.code is None:
        return ended("crashed", ran.errors[:300] or "it did not run")
    if ran.code < 0:
        return ended("crashed", f"{_signal_name(-ran.code)} while {doing}{last}")
    lines = ran.output.strip().splitlines()
    try:
        probe = CufileProbe.from_json(json.loads(lines[-1])) if lines else None
    except (ValueError, RecursionError):
        probe = None
    if probe is None:
        what = f"exit status {ran.code}" if ran.code else "no answer that can be read"
        return ended("garbage", f"{what} while {doing}{last}")
    return probe


def _known_so_far(errors: str) -> CufileProbe:
    for line in reversed(errors.splitlines()):
        if line.startswith(STAGE):
            with contextlib.suppress(ValueError, TypeError, RecursionError):  # the last line may have been cut off
                if found := CufileProbe.from_json({**json.loads(line.removeprefix(STAGE)), "status": "crashed"}):
                    return found
    return CufileProbe("crashed")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
