"""The comparison of loops of small batches runs."""

import json

from benchmarks import small_steps


def test_it_prints_a_line_for_each_case_and_keeps_a_record(tmp_path, capsys):
    options = ["--rows", "16", "--batches", "1", "64", "--steps-ms", "0.1", "--loop-s", "0.003", "--samples", "200"]
    assert small_steps.main([*options, "--rounds", "2", "--out", str(tmp_path / "record.json")]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "to torch-batches" in line]
    assert ["batch   1" in line for line in lines] == [True, False]
    record = json.loads((tmp_path / "record.json").read_text())
    assert [case["steps"] for case in record["cases"]] == [30, 30]
    for case in record["cases"]:
        assert case["wall_us"].keys() == {"gdsload", "torch", "torch-batches", "steps alone"}
        assert all(found["median"] > 0 for found in case["to"].values())
