"""The comparison of windows of tokens runs."""

import json

from benchmarks import clips


def test_it_prints_a_line_for_each_batch_size_and_keeps_a_record(tmp_path, capsys):
    options = ["--tokens", "3000", "--length", "65", "--batches", "4", "16", "--seconds", "0.01", "--rounds", "2"]
    options += ["--settle-s", "0"]
    assert clips.main([*options, "--out", str(tmp_path / "record.json")]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "to memmap" in line]
    assert [line.split()[1] for line in lines] == ["4", "16"]
    record = json.loads((tmp_path / "record.json").read_text())
    for case in record["cases"]:
        assert case["rates"].keys() == {"windows", "packed", "memmap"}
        assert all(found["median"] > 0 for found in case["rates"].values())
        assert set(case["bytes_by_path"]) == {"host"}
