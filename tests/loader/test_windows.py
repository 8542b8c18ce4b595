"""Windows of consecutive samples: as torch's loader makes them of `__getitem__`, by every way through the engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Subset, random_split

import gdsload
from gdsload import DataLoader, OptionError, SampleIndexError, Windows
from gdsload.loader.windows import window_starts

SAMPLES = 300


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """Steps of episodes of many lengths, over several shards, with fields that are packed and one that is not."""
    path = tmp_path_factory.mktemp("windows") / "steps"
    numbers = np.arange(SAMPLES)
    lengths = [1, 2, 7, 30, 4, 56, 100, 100]
    with gdsload.ShardWriter(path, shard_bytes="4KiB", pack_fields=["reward", "done", "episode"]) as writer:
        writer.write_batch(
            {
                "frame": numbers[:, None, None] * 10 + np.arange(6, dtype=np.int32).reshape(1, 3, 2),
                "episode": np.repeat(np.arange(len(lengths), dtype=np.int16), lengths),
                "reward": numbers.astype(np.float32),
                "done": numbers % 2 == 0,
            }
        )
    assert len(gdsload.ShardDataset(path).shards) > 3
    return path


def expected(windows, numbers):
    """The batch of some windows, from columns."""
    columns = {name: windows.dataset.column(name) for name in windows.dataset.schema}
    starts = windows.starts[numbers].tolist()
    return {
        name: torch.stack([column[start : start + windows.length] for start in starts])
        for name, column in columns.items()
    }


def assert_same(batch, wanted):
    assert set(batch) == set(wanted)
    for name, tensor in wanted.items():
        assert batch[name].shape == tensor.shape, name
        assert batch[name].dtype == tensor.dtype
        assert torch.equal(batch[name], tensor), name


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 20), min_size=0, max_size=8), st.integers(1, 9), st.integers(1, 9))
def test_where_windows_begin(runs, length, stride):
    """All that lie within one run, at multiples of the stride from its begin."""
    found = window_starts(np.cumsum(runs, dtype=np.int64), length, stride).tolist()
    begins = np.cumsum([0, *runs])
    wanted = [int(b) + at for b, n in zip(begins, runs, strict=False) for at in range(0, n - length + 1, stride)]
    assert found == wanted


def test_what_they_are(steps):
    windows = Windows(steps, 5, 2, within="episode")
    assert repr(windows).endswith(f"length=5, stride=2, within='episode': {len(windows)} windows)")
    episode = windows.dataset.column("episode")
    assert all(len(set(episode[start : start + 5].tolist())) == 1 for start in windows.starts.tolist())
    assert len(windows) == sum(max((n - 5) // 2 + 1, 0) for n in (1, 2, 7, 30, 4, 56, 100, 100))
    assert len(Windows(steps, SAMPLES)) == 1
    assert len(Windows(steps, SAMPLES + 1)) == 0
    assert windows[-1]["frame"].shape == (5, 3, 2)
    with pytest.raises(ValueError, match="read-only"):
        windows.starts[0] = 1


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("shuffle", [False, "full", "block"])
@pytest.mark.parametrize(("length", "stride", "within"), [(1, 1, None), (4, 1, "episode"), (4, 9, None), (16, 3, None)])
def test_every_order_gives_every_window_once(steps, mmap, shuffle, length, stride, within):
    windows = Windows(steps, length, stride, within=within)
    options = {"block": 8, "window": 16, "lanes": 2} if shuffle == "block" else {}
    loader = DataLoader(windows, 7, shuffle, device="cpu", mmap=mmap, with_index=True, prefetch_bytes="8KiB", **options)
    seen = []
    with loader:
        assert len(loader) == -(-len(windows) // 7)
        for batch in loader:
            index = batch.pop("index")
            assert index.shape == (len(batch["frame"]),)
            assert_same(batch, expected(windows, index.tolist()))
            seen += index.tolist()
        assert loader.stats.samples == len(windows)
    assert sorted(seen) == list(range(len(windows)))
    assert shuffle is not False or seen == sorted(seen)


def test_as_torchs_loader_makes_them(steps):
    windows = Windows(steps, 6, 3, within="episode")
    theirs = torch.utils.data.DataLoader(windows, 8)
    with DataLoader(windows, 8, device="cpu") as mine:
        for batch, wanted in zip(mine, theirs, strict=True):
            assert_same(batch, wanted)


def test_samplers_subsets_and_ranks(steps):
    windows = Windows(steps, 4, 4)
    first, second = random_split(windows, [0.7, 0.3], torch.Generator().manual_seed(0))
    for part in (first, second, ConcatDataset([second, first]), Subset(windows, [3, -1, 3])):
        with DataLoader(part, 5, device="cpu") as loader:
            found = torch.cat([batch["frame"] for batch in loader])
        assert torch.equal(found, torch.stack([part[number]["frame"] for number in range(len(part))]))
    with DataLoader(windows, 5, sampler=[7, 0, 7], device="cpu") as loader:
        (batch,) = loader
        assert_same(batch, expected(windows, [7, 0, 7]))
    ranks = []
    for rank in range(3):
        with DataLoader(windows, 5, "full", rank=rank, world_size=3, drop_last=True, device="cpu") as loader:
            ranks += [start for batch in loader for start in (batch["frame"][:, 0, 0, 0] // 10).tolist()]
    assert len(set(ranks)) == len(ranks) == len(windows) // 15 * 15
    assert set(ranks) <= set(windows.starts.tolist())


def test_resumed_at_every_step(steps):
    windows = Windows(steps, 4, 2, within="episode")

    def made():
        return DataLoader(windows, 16, "block", block=8, window=16, lanes=2, device="cpu", mmap=False)

    with made() as loader:
        whole, states = [], []
        for batch in loader:
            whole.append(batch["frame"].clone())
            states.append(loader.state_dict())
    for step, state in enumerate(states[:-1]):
        with made() as loader:
            loader.load_state_dict(state)
            rest = [batch["frame"] for batch in loader]
        assert [torch.equal(one, two) for one, two in zip(rest, whole[step + 1 :], strict=True)]
    other = DataLoader(Windows(steps, 3, 2, within="episode"), 16, "block", block=8, window=16, lanes=2, device="cpu")
    with other, pytest.raises(gdsload.StateError, match="dataset"):
        other.load_state_dict(states[0])


def test_transforms_get_windows(steps):
    def mean(batch):
        return {"mean": batch["reward"].mean(1)}

    windows = Windows(steps, 10)
    with DataLoader(windows, 4, device="cpu", device_transform=mean, fields=["reward"], reuse_buffers=True) as loader:
        found = torch.cat([batch["mean"].clone() for batch in loader])
    assert torch.equal(found, torch.arange(len(windows)) + 4.5)


def test_no_such_window(steps):
    windows = Windows(steps, 2)
    with pytest.raises(SampleIndexError, match="window 299 does not exist: there are 299"):
        windows[299]
    with pytest.raises(OptionError, match="1.5 is no index of a sample"):
        windows[1.5]


@pytest.mark.parametrize("shape", [(), (3,)])
def test_of_no_samples_there_are_none(tmp_path, shape):
    with gdsload.ShardWriter(tmp_path / "none", {"x": "float32", "episode": gdsload.Field("int64", shape)}):
        pass
    assert len(Windows(tmp_path / "none", 2, within="episode")) == 0


def test_a_dataset_of_documents_has_no_windows(tmp_path):
    """Not none without a word: of one long document they were 0."""
    with gdsload.ShardWriter(tmp_path / "d", {"tokens": gdsload.Field("uint16", (None,)), "text": "str"}) as writer:
        writer.write({"tokens": np.arange(100, dtype=np.uint16), "text": "a"})
    with pytest.raises(OptionError, match="but all of the dataset's are ragged or texts. Convert .* each='token'"):
        Windows(tmp_path / "d", 8)


def test_ragged_fields_are_left_out(tmp_path):
    with gdsload.ShardWriter(
        tmp_path / "texts", {"x": gdsload.Field("int64", ()), "text": gdsload.Field("str")}
    ) as writer:
        for number in range(6):
            writer.write({"x": number, "text": "ab"[: number % 3]})
    for within, starts in ((None, [0, 1, 2, 3, 4]), ("text", [])):
        windows = Windows(tmp_path / "texts", 2, within=within)
        assert windows.starts.tolist() == starts
        with pytest.raises(OptionError, match="'text' is ragged or a text"):
            DataLoader(windows, 2, device="cpu")
        with DataLoader(windows, 8, fields=["x"], device="cpu") as loader:
            assert [start for batch in loader for start in batch["x"][:, 0].tolist()] == starts
