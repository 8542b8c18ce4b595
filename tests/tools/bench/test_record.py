"""The record of a whole measurement, with all that it has."""

import json

from gdsload.tools.bench import run_bench
from tests.tools.bench.records import COLD


def test_the_record_has_limits_and_a_row_for_each_path(planned, drops):
    said = []
    plan = planned(backends=("auto", "host", "gds"), torch_row=True, workers=1)
    record = run_bench(plan, progress=lambda *of: said.append(of))
    json.dumps(record)
    assert record["schema"] == 1
    assert record["limits"]["drive"]["gb_per_s"] > 0
    assert record["limits"]["memory"]["gb_per_s"] > 0
    assert [epoch.keys() for epoch in record["cold_start"]["epochs"]] == [{"seconds", "gb_per_s", "first_batch_s"}] * 3
    assert "CUDA device" in record["conditions"]["unavailable"]["gds"]
    assert [(checked["row"], checked["samples"]) for checked in record["verified"]] == [
        ("host", 512), ("read", 512), ("torch DataLoader", 512)
    ]  # fmt: skip
    for state in ("cold", "hot"):
        found = record[state]
        assert found["state"] == state
        assert [row["kind"] for row in found["rows"]] == ["gdsload", "control", "read", "torch"]
        assert found["rows"][0]["asked"] == ["auto", "host"]  # equal rows are one
        assert record["limits"]["noise"][state] >= 0
        for row in found["rows"]:
            assert row.keys() == COLD["rows"][0].keys()  # the records that are made up have what this one has
            assert len(row["turns"]) == (2 if row["kind"] in ("gdsload", "control") else 1)
            assert 0 < row["gb_per_s"]["q1"] <= row["gb_per_s"]["median"] <= row["gb_per_s"]["q3"]
            assert row["cpu_s_per_gb"] > 0
    assert sum(found["drive_share"] for found in record["hot"]["rows"]) == 0
    assert said[-1][0].startswith("hot, turn 12 of 12: ")
    assert [done for _, done, _ in said] == sorted(done for _, done, _ in said)
    assert all(done <= of for _, done, of in said)
