"""The public face: its names, their documentation, and what importing it costs."""

import ast
import inspect
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import gdsload
import gdsload.testing

ROOT = Path(gdsload.__file__).resolve().parent.parent

HEAVY = ("kvikio", "cupy", "cuda", "pandas", "sklearn", "safetensors", "pytest")

WAYS = (
    "import gdsload; gdsload.loader.loader.DataLoader", "from gdsload import DataLoader, transforms; transforms.Cast"
)  # fmt: skip
MEASURE = f"""
import gc, json, os, sys, time
gc.disable()
began = time.process_time()
import torch, torch.utils.data, numpy
without, known = time.process_time(), set(sys.modules)
import gdsload
for name in gdsload.__all__: getattr(gdsload, name)
share = (time.process_time() - without) / (without - began)
new = {{name.partition(".")[0] for name in set(sys.modules) - known}}
print(json.dumps([share, sorted(new & set({HEAVY!r}))]))
for name in [name for name in sys.modules if name.partition(".")[0] == "gdsload"]: del sys.modules[name]
for way in sys.argv[1:]:
    if not (child := os.fork()):
        exec(way)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, way
"""


@pytest.mark.parametrize("module", [gdsload, gdsload.testing], ids=lambda module: module.__name__)
class TestNames:
    def test_all_names_what_is_public_and_nothing_else(self, module):
        for name in module.__all__:
            getattr(module, name)
        public = {
            name
            for name, value in vars(module).items()
            if not (name.startswith("_") or inspect.ismodule(value) or name in ("annotations", "TYPE_CHECKING", "Any"))
        }
        assert set(module.__all__) - {"__version__"} == public
        assert list(module.__all__) == sorted(module.__all__)
        assert len(set(module.__all__)) == len(module.__all__)

    def test_every_class_and_function_is_documented(self, module):
        bare = []
        for name in module.__all__:
            value = getattr(module, name)
            if not (inspect.isclass(value) or inspect.isfunction(value)):
                continue
            if not inspect.getdoc(value):
                bare.append(name)
            members = vars(value).items() if inspect.isclass(value) else ()
            for member, thing in members:
                described = isinstance(thing, property) or inspect.isfunction(thing)
                # Tests say in their names what they show.
                if described and not member.startswith(("_", "test_")) and not inspect.getdoc(thing):
                    bare.append(f"{name}.{member}")
        assert bare == []


def test_names_that_are_imported_late_are_what_type_checkers_are_told():
    """By the block that only they read; so both lists have the same names, and each is what that module defines."""
    tree = ast.parse(Path(gdsload.__file__).read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)]
    told = {alias.name: node.module for node in block.body for alias in node.names}
    assert {*told, "__version__"} == set(gdsload.__all__)
    for name, module in told.items():
        assert getattr(gdsload, name) is getattr(sys.modules[module], name)
    assert {*gdsload.__all__} <= {*dir(gdsload)}


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="module 'gdsload' has no attribute 'Dataloader'"):
        gdsload.Dataloader  # noqa: B018 - it is asked for
    with pytest.raises(ImportError, match="cannot import name 'Dataloader' from 'gdsload'"):
        from gdsload import Dataloader  # noqa: F401 - nor is it imported


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], [], ["convert", "--help"], ["bench", "--help"]])
def test_help_needs_neither_torch_nor_numpy(arguments):
    """The imports, not the time: it takes 0.1 s, but a test of that would be one of the machine."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "gdsload", *arguments],
        capture_output=True, text=True, check=False, timeout=50,
    )  # fmt: skip
    assert "gdsload" in done.stdout
    imported = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
    rooms = Counter(name.partition(".")[0] for name in imported)
    assert rooms["gdsload"] > 5
    assert {"torch", "numpy", "multiprocessing"} & rooms.keys() == set()


def test_importing_it_is_quick_brings_nothing_heavy_and_may_be_done_in_any_way():
    """About an eighth of what torch itself takes: a ratio, as a machine may be slow, or do other things as well.

    Without the garbage collector: its one pass over all that torch has made may come while either is imported. After
    that other ways of importing it are tried, each without what was imported before.
    """
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # or what is measured is compiling
    shares = []
    for _ in range(5):
        found = subprocess.run(
            [sys.executable, "-c", MEASURE, *([] if shares else WAYS)], env=environment, capture_output=True, text=True,
            check=True, timeout=50,
        )  # fmt: skip
        share, heavy = json.loads(found.stdout)
        assert heavy == []
        shares.append(share)
        if share < 0.16:
            break
    assert min(shares) < 0.16


def test_nothing_in_the_package_imports_what_is_for_tests():
    found = [
        str(file)
        for file in Path(gdsload.__file__).parent.rglob("*.py")
        if "testing" not in file.parts and "gdsload.testing" in file.read_text(encoding="utf-8")
    ]
    assert found == []
