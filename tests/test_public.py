"""The public face: its names, their documentation, and what importing it costs."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gdsload
import gdsload.testing

ROOT = Path(gdsload.__file__).resolve().parent.parent

HEAVY = ("kvikio", "cupy", "cuda", "pandas", "sklearn", "safetensors", "pytest")

MEASURE = f"""
import json, sys, time
began = time.process_time()
import torch, torch.utils.data, numpy
without, known = time.process_time(), set(sys.modules)
import gdsload
share = (time.process_time() - without) / (without - began)
new = {{name.partition(".")[0] for name in set(sys.modules) - known}}
print(json.dumps([share, sorted(new & set({HEAVY!r}))]))
"""


@pytest.mark.parametrize("module", [gdsload, gdsload.testing], ids=lambda module: module.__name__)
class TestNames:
    def test_all_names_what_is_public_and_nothing_else(self, module):
        public = {
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and not inspect.ismodule(value) and name != "annotations"
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


def test_the_version_is_one_of_packagings():
    assert gdsload.__version__.count(".") == 2


def test_importing_it_is_quick_and_brings_nothing_heavy():
    """About a sixth of what torch itself takes: a ratio, as a machine may be slow, or do other things as well."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # or what is measured is compiling
    shares = []
    for _ in range(5):
        found = subprocess.run(
            [sys.executable, "-c", MEASURE], env=environment, capture_output=True, text=True, check=True, timeout=50
        )
        share, heavy = json.loads(found.stdout)
        assert heavy == []
        shares.append(share)
        if share < 0.2:
            break
    assert min(shares) < 0.2


def test_nothing_in_the_package_imports_what_is_for_tests():
    found = [
        str(file)
        for file in Path(gdsload.__file__).parent.rglob("*.py")
        if "testing" not in file.parts and "gdsload.testing" in file.read_text(encoding="utf-8")
    ]
    assert found == []
