"""The command verify."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

import gdsload
from gdsload.backends.files import load_shard
from gdsload.cli import main


@pytest.fixture
def dataset(tmp_path):
    """Three shards of ten samples; one value is NaN, and three are infinite."""
    x = np.ones((30, 100), np.float32)
    x[3, 4], x[25, :3] = np.nan, np.inf
    with gdsload.ShardWriter(tmp_path / "d", shard_bytes=4200) as writer:
        writer.write_batch({"x": x, "text": ["é" * (number % 3) for number in range(30)]})
    assert gdsload.ShardDataset(tmp_path / "d").counts.tolist() == [10, 10, 10]
    return tmp_path / "d"


def flip(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def test_a_sound_dataset(dataset, capsys):
    assert main(["verify", str(dataset)]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("3 shards, ")
    assert said.err == ""
    assert main(["verify", str(dataset), "--deep"]) == 0
    assert "field x: 1 values are NaN, 3 are infinite" in capsys.readouterr().out
    assert main(["verify", str(dataset), "--deep", "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert (tree["ok"], tree["samples"], tree["shards"]) == (True, 30, 3)
    assert (tree["nan"], tree["infinite"], tree["unchecked_bytes"]) == ({"x": 1}, {"x": 3}, 0)


def test_spoiled_samples_are_named(dataset, capsys):
    shards = sorted(dataset.glob("*.safetensors"))
    flip(shards[2], 8192)
    shards[1].unlink()
    assert main(["verify", str(dataset)]) == 1
    said = capsys.readouterr()
    assert "the shard is missing (samples 10 to 19)" in said.err
    assert said.out == "10 samples are spoiled: 10 to 19\n"


def test_json_lists_every_problem(dataset, capsys):
    shard = sorted(dataset.glob("*.safetensors"))[2]
    with open(shard, "rb") as file:
        begin = load_shard(file.fileno(), str(shard)).columns["x"].begin
    flip(shard, begin)
    assert main(["verify", str(dataset), "--json"]) == 1
    tree = json.loads(capsys.readouterr().out)
    (problem,) = tree["problems"]
    assert (tree["ok"], tree["spoiled_samples"]) == (False, [[20, 30]])
    assert problem["samples"] == [20, 30]
    assert (problem["file"], problem["offset"]) == (str(shard), begin)
    assert problem["nbytes"] > 0
    assert main(["verify", str(dataset)]) == 1
    said = capsys.readouterr()
    assert f"bytes {begin} to {begin + problem['nbytes'] - 1}: " in said.err
    assert said.out == "10 samples are spoiled: 20 to 29\n"


def test_files_without_checksums(tmp_path, capsys):
    save_file({"b": np.zeros((5, 2), bool), "x": np.array([1, np.nan, 2, -np.inf, 0])}, tmp_path / "a.safetensors")
    assert main(["verify", str(tmp_path)]) == 0
    assert "have no checksums" in capsys.readouterr().out
    assert main(["verify", str(tmp_path), "--deep"]) == 0
    assert "field x: 1 values are NaN, 1 are infinite" in capsys.readouterr().out
    data = (tmp_path / "a.safetensors").read_bytes()
    begin = int.from_bytes(data[:8], "little") + 8
    header = json.loads(data[8:begin])
    (tmp_path / "a.safetensors").write_bytes(
        data[: (at := begin + header["b"]["data_offsets"][0] + 5)] + b"\x02" + data[at + 1 :]
    )
    assert main(["verify", str(tmp_path)]) == 0
    assert main(["verify", str(tmp_path), "--deep"]) == 1
    said = capsys.readouterr()
    assert "field 'b'" in said.err
    assert "1 values are neither 0 nor 1 (samples 2 to 2)" in said.err
    assert said.out.endswith("1 samples are spoiled: 2\n")


def test_nothing_there(tmp_path, capsys):
    assert main(["verify", str(tmp_path / "no")]) == 1
    assert "there is no dataset here" in capsys.readouterr().err
