"""The command verify."""

import errno
import io
import json
import os
from contextlib import redirect_stdout

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import gdsload
from gdsload.shards.opening import load_shard
from gdsload.tools.cli import main
from tests.shards.bits import flip


@pytest.fixture
def dataset(tmp_path):
    """Three shards of ten samples; one value is NaN, and three are infinite."""
    x = np.ones((30, 100), np.float32)
    x[3, 4], x[25, :3] = np.nan, np.inf
    with gdsload.ShardWriter(tmp_path / "d", shard_bytes=4200) as writer:
        writer.write_batch({"x": x, "text": ["é" * (number % 3) for number in range(30)]})
    assert gdsload.ShardDataset(tmp_path / "d").counts.tolist() == [10, 10, 10]
    return tmp_path / "d"


def test_a_sound_dataset(dataset, cli):
    assert "field x: 1 value NaN, 3 infinite" in cli("verify", dataset, "--deep").out
    tree = cli("verify", dataset, "--deep", "--json").tree
    assert (tree["ok"], tree["samples"], tree["shards"]) == (True, 30, 3)
    assert (tree["nan"], tree["infinite"], tree["unchecked_bytes"]) == ({"x": 1}, {"x": 3}, 0)


def begin_of(path, column):
    with open(path, "rb") as file:
        return load_shard(file.fileno(), str(path)).columns[column].begin


def test_every_problem_is_named_and_what_it_spoils(dataset, cli):
    missing, flipped = sorted(dataset.glob("*.safetensors"))[1:]
    begin = begin_of(flipped, "x")
    flip(flipped, begin)
    missing.unlink()
    tree = cli("verify", dataset, "--json", code=1).tree
    assert (tree["ok"], tree["spoiled_samples"]) == (False, [[10, 30]])
    problems = {problem["file"]: problem for problem in tree["problems"]}
    assert problems.keys() == {str(missing), str(flipped)}
    assert problems[str(missing)]["samples"] == [10, 20]
    problem = problems[str(flipped)]
    assert (problem["samples"], problem["offset"]) == ([20, 30], begin)
    assert problem["nbytes"] > 0
    said = cli("verify", dataset, code=1)
    assert "the shard is missing (samples 10 to 19)" in said.err
    assert f"{flipped}, field 'x', bytes {begin} to {begin + problem['nbytes'] - 1}: " in said.err
    assert said.out == "20 samples are spoiled: 10 to 29\n"


def test_what_one_may_not_read_is_not_spoiled(dataset, cli, monkeypatch):
    real, first = os.open, min(dataset.glob("*.safetensors"))

    def refused(path, *flags, **options):
        if path == str(first):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *flags, **options)

    monkeypatch.setattr(os, "open", refused)
    said = cli("verify", dataset, code=1)
    assert said.out == ""
    assert said.err == (
        "error: 1 problem in 1 of 3 shards\n"
        f"  - {first}: the file cannot be opened: Permission denied\n"
        "hint: Give yourself the right to read what cannot be opened, and verify again.\n"
    )
    flip(sorted(dataset.glob("*.safetensors"))[2], 8192)
    said = cli("verify", dataset, code=1)
    assert said.out == "10 samples are spoiled: 20 to 29\n"
    assert "hint: Restore those shards from a copy, or write the dataset again. Give yourself the right" in said.err
    with pytest.raises(gdsload.ReadError, match="Permission denied. Give yourself the right to read it"):
        gdsload.ShardDataset(dataset)[0]


def _cut(path, rng):
    os.truncate(path, rng.randrange(path.stat().st_size))


def _grow(path, rng):
    os.truncate(path, path.stat().st_size + 1 + rng.randrange(9000))


def _flip_some(path, rng):
    for offset in rng.sample(range(4096, path.stat().st_size), rng.randint(1, 3)):
        flip(path, offset)


DAMAGES = {
    "removed": lambda path, rng: path.unlink(),
    "cut short": _cut,
    "grown": _grow,
    "flipped": _flip_some,
    "header": lambda path, rng: flip(path, rng.randrange(4096)),
    "a folder": lambda path, rng: (path.unlink(), path.mkdir()),
    "a link": lambda path, rng: path.symlink_to(path.rename(path.with_suffix(".moved"))),
}


@settings(derandomize=True, max_examples=25)
@given(st.dictionaries(st.integers(0, 6), st.sampled_from([*DAMAGES]), max_size=7), st.randoms(use_true_random=False))
def test_exactly_the_damaged_shards_are_named_whatever_the_others_are(tmp_path_factory, damages, rng):
    folder = tmp_path_factory.mktemp("damaged") / "d"
    with gdsload.ShardWriter(folder, shard_bytes=1) as writer:
        for number in range(7):
            writer.write({"x": np.full(3000, number, np.uint8), "s": "é" * number})
    shards = sorted(folder.glob("*.safetensors"))
    for number, damage in damages.items():
        DAMAGES[damage](shards[number], rng)
    with redirect_stdout(io.StringIO()) as said:
        assert main(["verify", str(folder), "--json"]) == (1 if damages else 0)
    tree = json.loads(said.getvalue())
    assert tree["ok"] == (not damages)
    assert {problem["file"] for problem in tree.get("problems", [])} == {str(shards[number]) for number in damages}
    # Of flipped bytes those that are in padding, and for which no sample stands, spoil none.
    spoiled = {number for low, high in tree.get("spoiled_samples", []) for number in range(low, high)}
    whole = {number for number, damage in damages.items() if damage != "flipped"}
    assert whole <= spoiled <= set(damages)


def test_a_folder_of_other_files_of_which_one_cannot_be_read(tmp_path, cli):
    """After it the samples' numbers are unknown."""
    for name in "abc":
        save_file({"b": np.zeros((5, 2), bool)}, tmp_path / f"{name}.safetensors")
    for name in "ac":
        flip(tmp_path / f"{name}.safetensors", begin_of(tmp_path / f"{name}.safetensors", "b") + 7, 1)
    (tmp_path / "b.safetensors").write_bytes(b"none")
    (tmp_path / "d.safetensors").symlink_to(tmp_path / "gone")
    tree = cli("verify", tmp_path, "--deep", "--json", code=1).tree
    assert {(problem["file"][-13:-12], problem["field"]) for problem in tree["problems"]} == {
        ("a", "b"), ("b", None), ("c", "b"), ("d", None),
    }  # fmt: skip
    assert tree["spoiled_samples"] == [[3, 4]]


def test_files_without_checksums(tmp_path, cli):
    save_file({"b": np.zeros((5, 2), bool), "x": np.array([1, np.nan, 2, -np.inf, 0])}, tmp_path / "a.safetensors")
    assert "have no checksums" in cli("verify", tmp_path).out
    assert "field x: 1 value NaN, 1 infinite" in cli("verify", tmp_path, "--deep").out
    flip(tmp_path / "a.safetensors", begin_of(tmp_path / "a.safetensors", "b") + 5, 1)
    cli("verify", tmp_path)
    said = cli("verify", tmp_path, "--deep", code=1)
    assert "field 'b'" in said.err
    assert "1 values are neither 0 nor 1 (samples 2 to 2)" in said.err
    assert said.out.endswith("1 sample is spoiled: 2\n")


def test_nothing_there(tmp_path, cli):
    assert "there is no dataset here" in cli("verify", tmp_path / "no", code=1).err
    for place in (tmp_path / "no", tmp_path):
        said = cli("verify", place, "--json", code=1)
        assert said.tree["ok"] is False
        assert said.err == ""
