"""Checks of the optional packages. A separate process imports them, since a broken package may crash or hang."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from gdsload.tools.doctor.context import Check, Context, trouble
from gdsload.tools.doctor.finding import Finding, Fix, clip, error, info, ok
from gdsload.tools.doctor.system import MODULES

_MAJOR = re.compile(r"-cu(?:da)?(\d{2})x?$")
_NEEDED_FOR = {
    "cupy": "gathers that use only a few multiprocessors of the GPU",
    "cuda-bindings": "the gds backend and cuFile's counters",
}


def extra(context: Context) -> Fix:
    """The installation of all of them, for torch's CUDA."""
    major = context.torch.cuda.partition(".")[0]
    line = f'pip install "gdsload[cu{major if major in ("12", "13") else "13"}]"'
    return Fix("Install gdsload's packages for CUDA", commands=(line,))


def _package(context: Context, package: str) -> Finding:
    """A package: installed once, importable, and built for torch's CUDA."""
    plain = re.compile(rf"{package.replace('-', '[-_]')}(-cu(da)?\d+x?)?")
    found = context.system.calls.distributions()
    versions = {name: version for name, version in found.items() if plain.fullmatch(name)}
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    evidence: dict[str, Any] = {"works": False}
    if not versions:
        message = f"{package} is not installed (needed for {_NEEDED_FOR[package]})"
        return trouble(context, message, extra(context) if context.has_gpu else "", **evidence)
    broken = context.system.calls.import_error(MODULES[package])
    wanted = context.torch.cuda.partition(".")[0]
    wrong = f"{named} cannot be imported: {clip(broken, 160)}" if broken else ""
    if len(versions) > 1 and package == "cupy":
        wrong = broken = f"more than one cupy is installed, which breaks it: {named}"
    elif wanted and any(major not in ("", wanted) for major in _majors(package, versions)):
        wrong = f"{named} is for another CUDA than torch, which is built for CUDA {wanted}"
    evidence = {"works": not broken}
    if not wrong:
        return ok(named, **evidence)
    if not context.has_gpu:
        return info(wrong, **evidence)
    lines = (f"pip uninstall -y {' '.join(versions)}", *extra(context).commands)
    return error(wrong, Fix("Uninstall it, and install the right one", commands=lines), **evidence)


def _majors(package: str, versions: dict[str, str]) -> Iterator[str]:
    """The major version of CUDA that each distribution is built for; empty if its name does not say."""
    for name, version in versions.items():
        match = _MAJOR.search(name)
        # cuda-bindings has CUDA's version as its own.
        yield match[1] if match else version.partition(".")[0] if package == "cuda-bindings" else ""


CHECKS: tuple[tuple[str, Check], ...] = tuple(
    (f"packages.{package}", partial(_package, package=package)) for package in MODULES
)
