"""The paths of libcufile and of the libraries that it loads itself, found without loading anything."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gdsload.system.probe.tree import Tree

_NAME = "libcufile.so.0"
_IN_WHEELS = ("nvidia/cu13/lib", "nvidia/cu12/lib", "nvidia/cufile/lib")
_IN_SYSTEM = tuple(
    f"{root}/{folder}"
    for root in ("/usr", "")
    for folder in ("lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "lib")
)
_DISTRIBUTION = re.compile(r"nvidia[_-]cufile(?:[_-]cu\d+)?-([0-9][0-9A-Za-z.]*)\.dist-info")
_SUFFIX = re.compile(r"libcufile\.so\.(\d+\.\d+[0-9.]*)$")


@dataclass(frozen=True, slots=True)
class Library:
    """A libcufile on disk; its version as its file's or its package's name gives it, or empty."""

    path: str
    version: str


def find_libraries(tree: Tree, environ: Mapping[str, str], site_folders: Sequence[str]) -> list[Library]:
    """Every libcufile in the places that loaders search, in about the order in which cuda-bindings does."""
    found = {}
    for path in [f"{folder.rstrip('/')}/{_NAME}" for folder in _folders(tree, environ, site_folders)] + _cached(
        tree, _NAME
    ):
        real = tree.resolve(path)
        if real is not None and real not in found:
            found[real] = Library(path, _version(tree, os.path.dirname(path), real))
    return list(found.values())


def missing_libraries(tree: Tree, names: Sequence[str]) -> list[str]:
    """Those of some libraries of the system that a loader would not find, such as ``libudev.so.1``."""
    return [
        name
        for name in names
        if not any(tree.exists(f"{folder}/{name}") for folder in _IN_SYSTEM)
        and not any(tree.exists(path) for path in _cached(tree, name))
    ]


def _cached(tree: Tree, name: str) -> list[str]:
    """The paths that the linker's cache has for a library: a table of strings is all that matters of its format."""
    cache = tree.data("/etc/ld.so.cache", 16 * 2**20) or b""
    return [
        os.fsdecode(path) for path in cache.split(b"\0") if path.startswith(b"/") and path.endswith(f"/{name}".encode())
    ]


def _folders(tree: Tree, environ: Mapping[str, str], site_folders: Sequence[str]) -> Iterator[str]:
    for site in site_folders:
        if site.startswith("/"):
            yield from (f"{site}/{folder}" for folder in _IN_WHEELS)
    if prefix := environ.get("CONDA_PREFIX"):
        yield f"{prefix}/lib"
    yield from (folder for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder.startswith("/"))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if prefix := environ.get(name):
            yield f"{prefix}/lib64"
    cudas = [name for name in tree.names("/usr/local") if name.startswith("cuda")]
    yield from (f"/usr/local/{name}/lib64" for name in cudas)
    yield from (f"/usr/local/{name}/targets/x86_64-linux/lib" for name in cudas)
    yield from _IN_SYSTEM


def _version(tree: Tree, folder: str, real: str) -> str:
    if match := _SUFFIX.search(real):
        return match[1]
    for wheel in _IN_WHEELS:
        if folder.endswith(wheel):
            for name in tree.names(folder[: -len(wheel)]):
                if match := _DISTRIBUTION.fullmatch(name):
                    return match[1]
    return ""
