"""Tests use what the package makes public; how many places do not may only fall."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_USES = 24
MOST_PATCHES = 64
"""Lower them as places go; a new one has to be worth more than a public name, and another one has to go for it."""


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def texts(folder):
    return {path: path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))}


def private_names(trees):
    """Private names that are bound anywhere in the package: of modules, classes and objects."""
    found = set()
    for tree in trees:
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    found.add(name)
                case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                    found.add(name)
                case ast.alias(name=name, asname=asname):
                    found.add(asname or name)
    return {name for name in found if is_private(name)}


def uses(tree, names):
    """Lines that use private names of the package: by attribute or by import."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name, lineno=line) if name in names:
                yield line
            case ast.ImportFrom(module=str(module), names=imported, lineno=line) if module.startswith("gdsload"):
                yield from (line for one in imported if one.name in names)


def patches(tree, names):
    """Lines that put something in a private name's place: ``patch.setattr(module, "_name", ...)``."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="setattr" | "delattr") | ast.Name(id="setattr" | "getattr"), args=args
            ):
                texts = [one.value for one in args[:2] if isinstance(one, ast.Constant) and isinstance(one.value, str)]
                yield from (node.lineno for text in texts if text.rpartition(".")[2] in names)


@cache
def parsed():
    """The private names, and the trees of the tests that have one of them in their text."""
    names = private_names(map(ast.parse, texts(ROOT / "gdsload").values()))
    found = {path: text for path, text in texts(ROOT / "tests").items() if names & set(re.findall(r"\w+", text))}
    return names, {path: ast.parse(text) for path, text in found.items()}


def places(count):
    names, trees = parsed()
    return [
        f"{path.relative_to(ROOT)}:{line}"
        for path, tree in trees.items()
        if "benchmarks" not in path.parts  # they are of another tree
        for line in sorted(count(tree, names))
    ]


def test_private_names_are_used_in_few_places():
    found = places(uses)
    assert len(found) <= MOST_USES, "\n".join(found)


def test_private_names_are_patched_in_few_places():
    found = places(patches)
    assert len(found) <= MOST_PATCHES, "\n".join(found)


def test_what_counts():
    names = private_names([ast.parse("_A = 1\nclass B:\n    def _b(self): self._c = 2\n    def __d(self): pass\n")])
    assert names == {"_A", "_b", "_c"}
    tested = ast.parse(
        "from gdsload.x import _A, a\nx._c = y._b().z\nself._c\nx._other\ny._replace()\n"
        'patch.setattr(x, "_A", 1)\npatch.setattr("gdsload.x._A", 1)\npatch.setattr(x, "A", "_A")\n'
    )
    assert list(map(sorted, (uses(tested, names), patches(tested, names)))) == [[1, 2, 2], [6, 7]]
