"""Training on one rank and on two: an epoch's samples are put together, then both take turns."""

from __future__ import annotations

import json

import pytest

from benchmarks.gpu import ddp


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_record_has_both_worlds(tmp_path, capsys):
    out = tmp_path / "found.json"
    command = ["--device", "cpu", "--small", "--bytes", "50KiB", "--rounds", "1", "--seconds-per-trial", "0.01"]
    assert ddp.main(["--out", str(out), *command, "--cases", "resnet18"]) == 0
    record = json.loads(out.read_text())
    [entry] = record["cases"]
    assert entry["samples"] >= 16
    for size in ("1", "2"):
        for way in ("alone", "loaded"):
            assert entry["images_s"][size][way]["median"] > 0
        assert 0 <= entry["stall"][size]["median"] < 1
        assert entry["bytes_by_path"][size]["host"] > 0
    assert entry["scaling"]["loaded"]["median"] > 0
    assert capsys.readouterr().out == ddp.render(record)


def test_a_sample_that_is_missing_or_twice_there_ends_the_run():
    with pytest.raises(RuntimeError, match="an epoch of 3 samples had 3, 2 different ones"):
        ddp.check_union([{"seen": [0, 1], "samples": 3}, {"seen": [1], "samples": 3}])
