"""Rows of a benchmark on a GPU: they end in VRAM with the dataset's bytes, and are those of paths that differ."""

import pytest

from gdsload.backends.select import dma_is_possible
from gdsload.tools.bench import make_plan, run_bench

pytestmark = pytest.mark.cuda


@pytest.fixture
def bench():
    """Runs a benchmark of short turns."""

    def run(path, **options):
        return run_bench(make_plan(str(path), device="cuda", turns=2, seconds=0.05, **options))

    return run


def test_each_path_is_a_row_and_ends_in_vram(varied, numbered, bench):
    for path, samples in ((varied, 300), (numbered, 512)):
        record = bench(path, shuffle="full", workers=2, torch_row=path is numbered)
        assert record["machine"]["gpu"]
        assert record["conditions"]["device"].startswith("cuda:")
        assert record["limits"]["link"]["gb_per_s"] > 1
        unavailable = record["conditions"]["unavailable"]
        for state in filter(lambda state: record[state]["rows"], ("cold", "hot")):
            rows = {row["name"]: row for row in record[state]["rows"]}
            assert {"bounce", "control", "read + .to"} <= rows.keys()
            assert ("mapped" in rows) == (state == "hot" and "mapped" not in unavailable)
            assert "mapped" not in rows or set(rows["mapped"]["bytes_by_path"]) == {"mapped"}
            assert ("gds" in rows) == ("gds" not in unavailable)
            assert ("kvikio" in rows) == (state == "cold" and "kvikio" not in unavailable)
            assert "auto" not in rows  # it comes to one of the others
            assert sum("auto" in row["asked"] for row in rows.values()) == 1
            assert all(row["gb_per_s"]["median"] > 0 for row in rows.values())
            assert set(rows["bounce"]["bytes_by_path"]) <= {"bounce-direct", "bounce-buffered", "host"}
        assert {checked["samples"] for checked in record["verified"]} == {samples}
        assert {"bounce", "read + .to"} <= {checked["row"] for checked in record["verified"]}
    assert {row["kind"] for row in record["hot"]["rows"]} >= {"gdsload", "control", "read", "torch"}


def test_gds_that_cannot_be_used_is_named_with_the_reason(numbered, bench):
    possible, why = dma_is_possible()
    record = bench(numbered, cold=False, torch_row=False)
    lacking = record["conditions"]["unavailable"].get("gds", "")
    assert bool(lacking) != any("gds" in row["asked"] for row in record["hot"]["rows"])
    assert possible or lacking == why
