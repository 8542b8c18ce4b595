"""Files of tests that need a GPU are not collected without one: this finds the names that they no longer find."""

import importlib.util
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).parent.parent
FILES = sorted(TESTS.rglob("test_*_on_gpu.py"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="they are collected here")
def test_they_can_be_imported():
    assert FILES
    for file in FILES:
        spec = importlib.util.spec_from_file_location(f"imported_{file.stem}", file)
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
