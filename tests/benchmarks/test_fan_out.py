"""Peers that share reading out, beside all of them reading everything: compared, then measured in turns."""

from __future__ import annotations

import json

import pytest

from benchmarks.gpu import fan_out


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_record_has_both_ways_with_what_they_read(tmp_path, capsys):
    out = tmp_path / "found.json"
    command = ["--device", "cpu", "--rounds", "2", "--seconds-per-trial", "0.01", "--bytes", "8MiB"]
    assert fan_out.main(["--out", str(out), *command, "--cases", "mapped-full-32"]) == 0
    record = json.loads(out.read_text())
    [entry] = record["cases"]
    for way in ("all", "shared"):
        assert len(entry["trials"][way]) == 2
        assert entry[way]["median"] > 0
    read = {way: sum(entry["trials"][way][0]["bytes_by_path"].values()) for way in ("all", "shared")}
    assert 0.45 < read["shared"] / read["all"] < 0.6
    table = capsys.readouterr().out
    assert table == fan_out.render(record)
    assert "| mapped-full-32, batch 32 |" in table
