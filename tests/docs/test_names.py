"""The architecture, the design notes and CONTRIBUTING name only files, modules, classes and functions that exist."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs/architecture.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/design/*.md"))]
ROOMS = "|".join(path.name for path in sorted((ROOT / "gdsload").iterdir()) if path.is_dir() and path.name[0] != "_")
PATH = re.compile(rf"(?<![\w/])(?:(?:gdsload|benchmarks|docs|tests|tools)/[\w./-]*\w|(?:{ROOMS})/\w[\w./-]*\w)")
QUOTED = re.compile(r"`(\w+(?:\.\w+)*)(?:\([^`]*)?`")
CLASS = re.compile(r"_?[A-Z]\w*[a-z][A-Z]\w*")
OF_OTHERS = {"BatchSampler", "CombinedLoader", "ProcessPoolExecutor", "RandomMix", "TypedDict"}


@cache
def code():
    """The text of each module."""
    return {
        path: path.read_text(encoding="utf-8")
        for folder in ("gdsload", "benchmarks", "tests", "tools")
        for path in ROOT.glob(f"{folder}/**/*.py")
        if path != Path(__file__)
    }


@cache
def words():
    return {word for text in code().values() for word in re.findall(r"\w+", text)}


def is_path(name):
    """Return whether a path is a file, a folder or a module, or a name in a module, as in ``backends/base.Backend``."""
    module, _, attribute = name.rpartition(".")
    for start in (ROOT, ROOT / "gdsload"):
        if (start / name).exists() or (start / f"{name}.py").exists():
            return True
        if attribute in re.findall(r"\w+", code().get(start / f"{module}.py", "")):
            return True
    return False


def is_name(name):
    """Return whether a name exists: a file's, one in a module of ours, or a class; others' are left alone."""
    head, *rest = name.split(".")
    if rest == ["py"]:
        return any(path.name == name for path in code())
    if head == "gdsload" or any(path.stem == head and "gdsload" in path.parts for path in code()):
        return set(rest) <= words()
    return not CLASS.fullmatch(head) or head in OF_OTHERS or {head, *rest} <= words()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_exists(page):
    text = page.read_text(encoding="utf-8")
    assert [name for name in PATH.findall(text) if not is_path(name)] == []
    assert [name for name in QUOTED.findall(text) if not is_name(name)] == []


def test_what_is_gone_is_found():
    for name in ("engine/ahead", "gdsload/engine/ahead.py", "backends/base.Direct"):
        assert (PATH.findall(f"see `{name}`"), is_path(name)) == ([name], False)
    for name in ("ahead_of.py", "streams.AsideStream", "gdsload.testing.NoSuchTests", "LandingZone"):
        assert (QUOTED.findall(f"see `{name}`"), is_name(name)) == ([name], False)
