"""The registry of contenders: what each suite finds in it."""

import sys

import pytest
import torch

from benchmarks import contenders, cpu
from benchmarks.contenders import CONTENDERS, ROWS, about, names
from benchmarks.contenders.base import Contender
from benchmarks.gpu.suite.cases import CASES, MEASURES

CPU = torch.device("cpu")
BASIC = [row.name for row in CONTENDERS.values() if row.basic]


def test_names_are_unique():
    assert len(CONTENDERS) == len({row.where for row in CONTENDERS.values()})
    assert all(name == row.name for name, row in CONTENDERS.items())
    assert len(CONTENDERS) == len(ROWS)


def test_every_contender_is_in_its_suite():
    in_cases = {name for case in CASES for name in case.contenders} | {each.contender for each in MEASURES}
    assert in_cases == set(names("gpu", "cuda"))
    assert set(CONTENDERS) == set(names("cpu", "cpu")) | set(names("gpu", "cuda"))
    assert all(row.suites for row in CONTENDERS.values())


def test_a_suite_has_what_can_run_on_its_device():
    assert set(names("gpu", "cuda")) - set(names("gpu", "cpu")) == {
        "gather", "gdsload-bounce", "gdsload-vram", "kvikio"
    }  # fmt: skip
    assert {"torch-items", "spdl", "gdsload"} <= set(names("cpu", "cpu")) & set(names("gpu", "cpu"))
    assert not {"numpy", "gdsload-block"} & set(names("gpu", "cuda"))
    assert list(names("cpu", "cpu")) == [name for name in CONTENDERS if name in names("cpu", "cpu")]


def test_a_smoke_test_takes_what_is_installed_anyway():
    options = cpu.parse(["--out", "x"])
    assert options.contenders is None
    assert {"copy", "numpy", "gdsload", "gdsload-block", "torch-batches"} <= set(BASIC)
    assert not {"spdl", "mosaicml", "dali"} & set(BASIC)
    assert {row.name for row in CONTENDERS.values() if row.ours} == {name for name in BASIC if "torch" not in name}


@pytest.mark.parametrize("name", BASIC)
def test_a_contender_says_what_it_is(name):
    kind = contenders.load(name)
    assert issubclass(kind, Contender)
    found = about(name, CPU, 3)
    assert found["title"]
    assert found["settings"]
    assert found["version"]
    assert found["package"] == CONTENDERS[name].package
    assert not {"{", "}"} & {*found["title"], *found["settings"]}


def test_workers_and_copies_are_in_what_it_says():
    assert "3 workers" in about("torch-items", CPU, 3)["title"]
    assert "pinned" not in about("torch-items", CPU, 3)["settings"]
    assert "pinned" in about("torch-items", torch.device("cuda"), 3)["settings"]
    assert "pinned" not in about("gdsload", torch.device("cuda"), 3)["settings"]


def test_an_absent_library_is_an_import_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match="safetensors"):
        contenders.load("safetensors")
