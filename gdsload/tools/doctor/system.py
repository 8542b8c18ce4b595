"""The machine as the checks see it: a file tree whose root can be replaced, and a few calls besides reading files.

Every call has a time limit, or runs in a thread with a time limit.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from gdsload.system.probe import CufileProbe, ask_cufile
from gdsload.system.probe.process import END_WITH_PARENT, answer_of, module_command, module_environment, run_bounded
from gdsload.system.probe.tree import Tree
from gdsload.tools.doctor.trials import FileTrial, GpuTrial, try_file

MODULES = {"cupy": "cupy", "cuda-bindings": "cuda.bindings"}
"""Optional packages by their common names, with the module of each."""
_DISTRIBUTIONS = ("cupy", "cuda-bindings", "cuda_bindings")
_IMPORT_TIMEOUT_S = 20.0
_probe = partial(ask_cufile, despite_bugs=True)  # the doctor has looked for known bugs before


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """The build of torch: its version, and the CUDA, HIP or other accelerator it was built for (empty: CPU only)."""

    version: str
    accelerator: str
    cuda: str


def _torch_build() -> TorchBuild:
    """Read from the file that its build wrote: importing torch takes more time than all the checks."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:  # else a file of the working folder would be read
        return TorchBuild("", "", "")
    with open(os.path.join(os.path.dirname(spec.origin), "version.py"), encoding="utf-8") as file:
        found = dict(re.findall(r"^(\w+)(?:\s*:[^=]*)?\s*=\s*'([^']*)'", file.read(), re.MULTILINE))
    kinds = [kind for kind in ("hip", "cuda", "xpu") if found.get(kind)]
    other = "mps" if sys.platform == "darwin" else ""
    return TorchBuild(found["__version__"], kinds[0] if kinds else other, found.get("cuda", ""))


def _try_gpu(file: str, device: str, timeout_s: float) -> GpuTrial:
    command = module_command("gdsload.tools.doctor.gpu_child", file, device)
    ran = run_bounded(command, timeout_s=timeout_s, environ=module_environment(os.environ))
    if answer := answer_of(ran):
        return GpuTrial(**answer)
    if ran.timed_out:
        return GpuTrial(status="timeout", error=f"torch and CUDA did not answer within {timeout_s:g} s")
    last = ran.errors.strip().rpartition("\n")[2]
    return GpuTrial(status="crashed", error=f"the process that tried the GPU ended with {ran.code}: {last}"[:300])


def _distributions() -> dict[str, str]:
    """Versions of the installed packages that matter, by their names as installed."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower()
        if name.startswith(_DISTRIBUTIONS):
            found.setdefault(name, distribution.version)
    return found


def _import_error(name: str) -> str:
    """The error of importing a module in a process; empty if it works."""
    # -P: the working folder may hold untrusted data, and nothing in it may be imported.
    command = [sys.executable, "-P", "-c", f"{END_WITH_PARENT}; import {name}"]
    ran = run_bounded(command, timeout_s=_IMPORT_TIMEOUT_S, environ=os.environ)
    if ran.timed_out:
        return f"the import did not end within {_IMPORT_TIMEOUT_S:g} s"
    if ran.code == 0:
        return ""
    return ran.errors.strip().rpartition("\n")[2][:300] or f"the import ended with {ran.code}"


def _can_load(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _device_number(path: str) -> str | None:
    """``major:minor`` of the device that a path is on; None if nothing is there."""
    try:
        device = os.stat(path).st_dev
    except (OSError, ValueError):
        return None
    return f"{os.major(device)}:{os.minor(device)}"


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls that the checks make besides reading the tree; each can be exchanged. Times are in seconds."""

    torch_build: Callable[[], TorchBuild] = _torch_build
    try_gpu: Callable[[str, str, float], GpuTrial] = _try_gpu
    probe: Callable[[str, str, float], CufileProbe] = _probe
    try_file: Callable[[str], FileTrial] = try_file
    distributions: Callable[[], dict[str, str]] = _distributions
    import_error: Callable[[str], str] = _import_error
    can_load: Callable[[str], bool] = _can_load
    number: Callable[[str], str | None] = _device_number


@dataclass(frozen=True, slots=True)
class System:
    """A machine; `architecture` is the processor's by uname."""

    tree: Tree = field(default_factory=Tree)
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    architecture: str = field(default_factory=platform.machine)
    calls: Calls = field(default_factory=Calls)
