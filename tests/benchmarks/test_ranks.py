"""Ranks beside one alone: every rank is measured in every round, and a rank that fails ends the run."""

from __future__ import annotations

import json

import pytest

from benchmarks.gpu import ranks

_COMMAND = ["--device", "cpu", "--rounds", "2", "--seconds-per-trial", "0.01"]


@pytest.mark.slow
def test_a_record_has_every_rank_alone_and_together(tmp_path, capsys):
    out = tmp_path / "found.json"
    assert ranks.main(["--out", str(out), *_COMMAND, "--bytes", "8MiB", "--cases", "in-order", "full"]) == 0
    record = json.loads(out.read_text())
    assert [entry["name"] for entry in record["cases"]] == ["in-order", "full"]
    for entry in record["cases"]:
        assert len(entry["ranks"]) == record["world_size"] == 2
        for found in entry["ranks"]:
            assert len(found["alone"]) == len(found["together"]) == 2
            assert found["ratio"]["median"] > 0
            assert found["bytes_by_path"]["host"] > 0
    table = capsys.readouterr().out
    assert table == ranks.render(record)
    assert "| full, batch 256 | 1 |" in table


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_run_with_its_error(tmp_path):
    with (
        ranks.started(ranks.Rank, tmp_path, "cpu", 2) as started,
        pytest.raises(RuntimeError, match="there is no dataset here"),
    ):
        started.tell("open", ranks.CASES[0], 0.01)
