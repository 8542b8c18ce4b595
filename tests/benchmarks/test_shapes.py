"""Samples of many shapes: every case runs, and what it loads was compared before."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks.gpu import shapes


def test_a_record_has_every_case_that_was_asked_for(tmp_path, capsys):
    names = [
        "images-32-of-8-ranks",
        "rows-4k-windows",
        "rows-4k-gather",
        "tokens-offsets",
        "tokens-padded",
        "tokens-jagged",
        "files",
        "scalars",
    ]
    command = ["--device", "cpu", "--rounds", "2", "--bytes", "1MiB", "--seconds-per-trial", "0.01"]
    assert shapes.main(["--out", str(tmp_path / "found.json"), *command, "--cases", *names]) == 0
    record = json.loads((tmp_path / "found.json").read_text())
    assert [entry["name"] for entry in record["cases"]] == names
    for entry in record["cases"]:
        assert len(entry["trials"]) == record["rounds"] == 2
        assert entry["gb_s"]["median"] > 0
        assert entry["bytes_by_path"]["host"] > 0
    table = capsys.readouterr().out
    assert all(f"| {name}, batch" in table for name in names)
    assert table == shapes.render(record)


@pytest.mark.parametrize("name", ["tokens-offsets", "tokens-padded", "tokens-jagged", "two-fields", "rows-4k-windows"])
def test_a_wrong_byte_is_noticed(tmp_path, monkeypatch, name):
    (case,) = (case for case in shapes.CASES if case.name == name)
    shapes.KINDS[case.kind].write(tmp_path / case.kind, 2**18)
    shapes.compare(case, tmp_path, torch.device("cpu"))

    def spoiled(batch):
        values = batch["x"][0] if isinstance(batch["x"], tuple) else batch["x"]
        values = values.values() if values.is_nested else values
        values.view(torch.uint8).view(-1)[0] ^= 1
        return batch

    real = shapes.Case.open
    monkeypatch.setattr(shapes.Case, "open", lambda *args, **more: real(*args, device_transform=spoiled, **more))
    with pytest.raises(RuntimeError, match=f"{name}: a batch is not what the files hold"):
        shapes.compare(case, tmp_path, torch.device("cpu"))
