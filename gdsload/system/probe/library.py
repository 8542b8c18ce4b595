"""The paths of libcufile and its configuration, found without loading anything."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdsload.system.probe.tree import Tree

_NAME = "libcufile.so.0"
_IN_WHEELS = ("nvidia/cu13/lib", "nvidia/cu12/lib", "nvidia/cufile/lib")
_IN_SYSTEM = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/lib64")
_DISTRIBUTION = re.compile(r"nvidia[_-]cufile(?:[_-]cu\d+)?-([0-9][0-9A-Za-z.]*)\.dist-info")
_SUFFIX = re.compile(r"libcufile\.so\.(\d+\.\d+[0-9.]*)$")
_CONFIG_LIMIT_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Library:
    """A libcufile on disk; its version as its file's or its package's name gives it, or empty."""

    path: str
    version: str


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration of cuFile.

    Attributes:
        text: its content; None if there is no such file, and cuFile uses its defaults.
        values: what it says; empty if it cannot be parsed.
        error: why it cannot be parsed, or empty.
    """

    path: str
    text: str | None
    values: dict[str, Any]
    error: str


def find_libraries(tree: Tree, environ: Mapping[str, str], site_folders: Sequence[str]) -> list[Library]:
    """Every libcufile in the places that loaders search, in about the order in which cuda-bindings does."""
    found = {}
    for folder in _folders(tree, environ, site_folders):
        path = f"{folder.rstrip('/')}/{_NAME}"
        real = tree.resolve(path)
        if real is not None and real not in found:
            found[real] = Library(path, _version(tree, folder, real))
    cache = tree.data("/etc/ld.so.cache", 16 * 2**20) or b""
    for name in cache.split(b"\0"):  # a table of strings is all that matters of its format
        if name.startswith(b"/") and name.endswith(f"/{_NAME}".encode()):
            path = os.fsdecode(name)
            real = tree.resolve(path)
            if real is not None and real not in found:
                found[real] = Library(path, _version(tree, os.path.dirname(real), real))
    return list(found.values())


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


def read_config(tree: Tree, environ: Mapping[str, str]) -> Config:
    """The configuration of cuFile: that of ``CUFILE_ENV_PATH_JSON``, else /etc/cufile.json."""
    path = environ.get("CUFILE_ENV_PATH_JSON") or "/etc/cufile.json"
    text = tree.text(path, _CONFIG_LIMIT_BYTES)
    if text is None:
        return Config(path, None, {}, "")
    values, error = parse_config(text)
    return Config(path, text, values, error)


def parse_config(text: str) -> tuple[dict[str, Any], str]:
    """Parse JSON with ``//`` and ``/* */`` comments: the values and "", or nothing and what is wrong."""
    try:
        values = json.loads(_without_comments(text))
    except (ValueError, RecursionError) as error:
        return {}, str(error) or type(error).__name__
    return (values, "") if isinstance(values, dict) else ({}, "it is no JSON object")


# An unclosed comment or string extends to the end: trying again from every quote in it would take for ever.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"?|//[^\n]*|/\*(?:.*?\*/|.*)', re.DOTALL)


def _without_comments(text: str) -> str:
    # Strings are matched first, so that a // inside one stays.
    return _TOKEN.sub(lambda match: match[0] if match[0].startswith('"') else " ", text)
