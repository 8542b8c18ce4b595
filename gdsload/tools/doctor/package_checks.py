"""Checks of the optional packages. None is imported here: a broken one raises, crashes or hangs. A process tries it."""

from __future__ import annotations

import re
from typing import Any

from gdsload.tools.doctor.context import Context
from gdsload.tools.doctor.finding import Finding, clip, error, info, ok, warning
from gdsload.tools.doctor.system import MODULES

__all__ = ["CHECKS"]

_MAJOR = re.compile(r"-cu(?:da)?(\d{2})x?$")
_NEEDED_FOR = {
    "cupy": "gathers that leave most of the GPU to others",
    "kvikio": "comparing with kvikio",
    "cuda-bindings": "the gds backend and cuFile's counters",
}


def _extra(context: Context) -> str:
    major = context.torch.cuda.partition(".")[0]
    return f'pip install "gdsload[cu{major}]"' if major in ("12", "13") else 'pip install "gdsload[cu13]"'


def _versions(context: Context, package: str) -> dict[str, str]:
    found = context.system.calls.distributions()
    plain = re.compile(rf"{package.replace('-', '[-_]')}(-cu(da)?\d+x?)?")
    return {name: version for name, version in found.items() if plain.fullmatch(name)}


def _package(context: Context, package: str) -> Finding:
    versions = _versions(context, package)
    needed = _NEEDED_FOR[package]
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    evidence: dict[str, Any] = {"installed": versions, "works": False, "error": ""}
    if not context.system.calls.has_module(MODULES[package]):
        if not context.has_gpu:
            return info(f"{package} is not installed; it is of no use here", **evidence)
        if package == "kvikio":
            return info(f"kvikio is not installed; only {needed} needs it", **evidence)
        return warning(f"{package} is not installed; {needed} need it", _extra(context), **evidence)
    if len(versions) > 1 and package == "cupy":
        evidence["error"] = "more than one cupy is installed"
        remedy = f"Uninstall all of them, then: {_extra(context)}"
        return error(f"more than one cupy is installed, which breaks it: {named}", remedy, **evidence)
    broken = context.system.calls.import_error(MODULES[package])
    evidence |= {"works": not broken, "error": clip(broken, 300)}
    if not broken:
        return ok(named or f"{package}, of unknown version", **evidence)
    message = f"{named or package} cannot be imported: {clip(broken, 160)}"
    if context.has_gpu:
        return error(message, f"Install it again: {_extra(context)}", **evidence)
    return info(f"{message}; it is of no use here", **evidence)


def cupy(context: Context) -> Finding:
    """Cupy: compiles the gather."""
    return _package(context, "cupy")


def kvikio(context: Context) -> Finding:
    """Kvikio."""
    return _package(context, "kvikio")


def cuda_bindings(context: Context) -> Finding:
    """NVIDIA's cuda-bindings: cuFile and its counters."""
    return _package(context, "cuda-bindings")


def cuda_major(context: Context) -> Finding:
    """The CUDA versions that packages are built for, which should be torch's."""
    wanted = context.torch.cuda.partition(".")[0]
    found = {}
    for package in MODULES:
        for name, version in _versions(context, package).items():
            match = _MAJOR.search(name)
            # cuda-bindings has CUDA's version as its own.
            found[name] = match[1] if match else version.partition(".")[0] if package == "cuda-bindings" else ""
    wrong = {name: major for name, major in found.items() if major and wanted and major != wanted}
    evidence: dict[str, Any] = {"torch": wanted, "packages": found}
    if wrong:
        named = ", ".join(f"{name} (CUDA {major})" for name, major in wrong.items())
        message = f"torch is built for CUDA {wanted}, but {named} is installed"
        return warning(message, f"Install those for CUDA {wanted}: {_extra(context)}", **evidence)
    if not wanted:
        return info("torch is not built for CUDA, so there is nothing to match", **evidence)
    return ok(f"all packages are for CUDA {wanted}", **evidence)


CHECKS = (
    ("packages.cupy", cupy),
    ("packages.kvikio", kvikio),
    ("packages.cuda-bindings", cuda_bindings),
    ("packages.cuda-major", cuda_major),
)
