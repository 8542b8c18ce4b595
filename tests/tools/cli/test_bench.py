"""`gdsload bench` as it is typed: what it measures is tested in tests/tools/bench."""

import numpy as np
import pytest

import gdsload
from gdsload.tools.bench import rows


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "shards"
    with gdsload.ShardWriter(path, {"x": gdsload.Field("uint8", (1000,))}) as writer:
        writer.write_batch({"x": np.zeros((300, 1000), np.uint8)})
    return path


def test_the_record_and_the_table_are_printed(dataset, cli, monkeypatch):
    monkeypatch.setattr(rows, "TorchRow", rows.ReadRow)  # its workers take seconds to begin
    words = ("bench", dataset, "--device", "cpu", "--turns", 1, "--seconds", 0.01, "--hot-only")
    record = cli(*words, "--json").tree
    assert (record["cold"], record["conditions"]["turns"]) == (None, 1)
    assert "no accelerator: batches of all rows end in RAM" in cli(*words).out


def test_bad_input_is_refused(tmp_path, cli, dataset):
    assert "there is no dataset here" in cli("bench", tmp_path / "nothing", code=1).err
    with gdsload.ShardWriter(tmp_path / "empty", {"x": "str"}):
        pass
    assert "nothing to measure" in cli("bench", tmp_path / "empty", code=2).err
    err = cli("bench", dataset, "--device", "cpu", "--backends", "bounce", code=1).err
    assert "needs a CUDA device" in err
