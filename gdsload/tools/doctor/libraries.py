"""The search for libcufile, and for the libraries that it loads, without loading any of them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from gdsload.system.probe.tree import Tree
from gdsload.tools.doctor.system import System

_NAME = "libcufile.so.0"
_IN_WHEELS = ("nvidia/cu13/lib", "nvidia/cu12/lib", "nvidia/cufile/lib")
_IN_SYSTEM = tuple(
    f"{root}/{folder}"
    for root in ("/usr", "")
    for folder in ("lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "lib")
)
_VERSION = re.compile(r"(?:libcufile\.so\.|nvidia[_-]cufile(?:[_-]cu\d+)?-)(\d+\.\d+[0-9.]*?)(?:\.dist-info)?")


class Library(NamedTuple):
    """A libcufile on disk, with its version from the name of its file or package, or empty."""

    path: str
    version: str


def find_libraries(system: System) -> list[Library]:
    """Every libcufile in the folders that loaders search, in about the order of cuda-bindings."""
    tree, environ = system.tree, system.environ
    sites = [site for site in system.site_folders if site.startswith("/")]
    cudas = [environ.get("CUDA_HOME"), environ.get("CUDA_PATH")]
    cudas += [f"/usr/local/{name}" for name in tree.names("/usr/local") if name.startswith("cuda")]
    folders = [f"{site}/{wheel}" for site in sites for wheel in _IN_WHEELS]
    folders += [f"{prefix}/lib" for prefix in [environ.get("CONDA_PREFIX")] if prefix]
    folders += [folder for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder.startswith("/")]
    folders += [f"{cuda}/{lib}" for cuda in cudas if cuda for lib in ("lib64", "targets/x86_64-linux/lib")]
    found = {}
    for path in [*(f"{folder.rstrip('/')}/{_NAME}" for folder in (*folders, *_IN_SYSTEM)), *_cached(tree, _NAME)]:
        real = tree.resolve(path)
        if real is not None and real not in found:
            site = next((path.partition(f"/{wheel}/")[0] for wheel in _IN_WHEELS if f"/{wheel}/" in path), None)
            named = [os.path.basename(real), *(tree.names(site) if site else ())]
            versions = [match[1] for name in named if (match := _VERSION.fullmatch(name))]
            found[real] = Library(path, versions[0] if versions else "")
    return list(found.values())


def missing_libraries(tree: Tree, names: Sequence[str]) -> list[str]:
    """The names, such as ``libudev.so.1``, of the system libraries that a loader would not find."""
    return [
        name
        for name in names
        if not any(map(tree.exists, [*(f"{folder}/{name}" for folder in _IN_SYSTEM), *_cached(tree, name)]))
    ]


def _cached(tree: Tree, name: str) -> list[str]:
    """The paths of a library in the linker's cache, whose format contains a table of strings."""
    paths = map(os.fsdecode, (tree.data("/etc/ld.so.cache", 16 * 2**20) or b"").split(b"\0"))
    return [path for path in paths if path.startswith("/") and path.endswith(f"/{name}")]
