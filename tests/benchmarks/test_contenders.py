"""The registry of contenders: what each suite finds in it, and what each says of itself."""

import pytest
import torch

from benchmarks import contenders
from benchmarks.contenders import CONTENDERS, ROWS, about, names
from benchmarks.contenders.base import Contender
from benchmarks.gpu.suite.cases import CASES, MEASURES, make_rows


def test_names_are_unique_and_every_contender_is_in_a_suite():
    assert len(CONTENDERS) == len({row.where for row in CONTENDERS.values()}) == len(ROWS)
    in_cases = {name for case in CASES for name in case.contenders} | {each.contender for each in MEASURES}
    assert in_cases == set(names("gpu", "cuda"))
    assert set(CONTENDERS) == set(names("cpu", "cpu")) | set(names("gpu", "cuda"))
    assert set(names("gpu", "cuda")) - set(names("gpu", "cpu")) == {
        "gather", "gdsload-bounce", "gdsload-vram", "kvikio"
    }  # fmt: skip


def test_what_cases_name_exists():
    rows = make_rows(2**30, multiple=16)
    for case in CASES:
        assert case.limit == case.contenders[0]
        assert rows[case.rows].samples % case.batch_size == 0
    assert {each.rows for each in MEASURES} <= rows.keys()


@pytest.mark.parametrize("name", [row.name for row in CONTENDERS.values() if row.basic])
def test_a_contender_says_what_it_is(name):
    assert issubclass(contenders.load(name), Contender)
    found = about(name, torch.device("cpu"), 3)
    assert found["title"]
    assert found["settings"]
    assert found["version"]
    assert found["package"] == CONTENDERS[name].package
    assert not {"{", "}"} & {*found["title"], *found["settings"]}
