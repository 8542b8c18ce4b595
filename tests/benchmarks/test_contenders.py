"""The registry of contenders: what each suite finds in it."""

from benchmarks.contenders import CONTENDERS, ROWS, names
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
