"""Windows of samples: as numpy makes them, and as torch's loader does of `__getitem__`, by every way of the engine."""

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Subset, random_split

import gdsload
from gdsload import DataLoader, Field, Memory, OptionError, SampleIndexError, ShardWriter, Windows
from gdsload.testing import assert_resumes_everywhere, fingerprint

SAMPLES = 300


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """Steps of episodes of many lengths, over several shards, with fields that are packed and one that is not."""
    path = tmp_path_factory.mktemp("windows") / "steps"
    numbers = np.arange(SAMPLES)
    lengths = [1, 2, 7, 30, 4, 56, 100, 100]
    with ShardWriter(path, shard_bytes="4KiB", pack_fields=["reward", "done", "episode"]) as writer:
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


OFFSETS = st.one_of(
    st.builds(lambda low, count, step: range(low, low + count * step, step), st.integers(-6, 6), st.integers(1, 5),
              st.integers(1, 4)),
    st.lists(st.integers(-6, 6), min_size=1, max_size=4),
)  # fmt: skip
SHAPES = st.sampled_from([{"length": 3}, {"length": 4, "step": 5}, {"length": 2, "step": 2}, {"length": 1, "step": 9}])
NAMES = ("pixels", "action", "reward", "done")
ORDERS = ({"shuffle": False}, {"shuffle": "full"}, {"shuffle": gdsload.BlockShuffle(block=5, window=10, lanes=2)})


@st.composite
def drawn(draw):
    """Arrays of some runs of samples, how they are stored, and keywords of windows and of a loader."""
    runs = draw(st.lists(st.integers(1, 40), min_size=1, max_size=5))
    count, row = sum(runs), draw(st.sampled_from([(), (3,), (2, 0), (4, 2)]))
    rng = np.random.default_rng(count)
    arrays = {
        "pixels": rng.integers(0, 256, (count, 200, *row), np.uint8),
        "action": rng.standard_normal((count, *row), np.float32),
        "reward": rng.standard_normal(count),
        "done": rng.integers(0, 2, count).astype(bool),
        "episode": np.repeat(np.arange(len(runs)), runs),
    }
    packed = draw(st.sampled_from([[], ["reward", "done"], ["reward", "done", "episode"]]))
    written = {"shard_bytes": draw(st.sampled_from([2**12, 2**20])), "pack_fields": packed}
    offsets = st.dictionaries(st.sampled_from(NAMES), OFFSETS, min_size=1)
    shape = draw(st.one_of(SHAPES, st.builds(lambda offsets: {"offsets": offsets}, offsets)))
    shape |= {"stride": draw(st.integers(1, 7)), "within": draw(st.sampled_from([None, "episode"]))}
    return runs, arrays, written, shape, draw(st.sampled_from(ORDERS)) | {"mmap": draw(st.booleans())}


@settings(derandomize=True, max_examples=30)
@given(drawn())
def test_batches_are_those_of_numpy(tmp_path_factory, case):
    """Of any lengths, steps and offsets, whatever crosses shards, in every order: byte for byte."""
    runs, arrays, written, shape, order = case
    path = tmp_path_factory.mktemp("drawn") / "d"
    with ShardWriter(path, **written) as writer:
        writer.write_batch(arrays)
    same = np.arange(shape.get("length", 1)) * shape.get("step", 1)
    offsets = {name: np.array(one) for name, one in shape.get("offsets", dict.fromkeys(arrays, same)).items()}
    low = min(0, *(int(one.min()) for one in offsets.values()))
    high = max(0, *(int(one.max()) for one in offsets.values()))
    ends = np.cumsum(runs) if shape["within"] else [sum(runs)]
    starts = [at for begin, end in pairwise([0, *ends]) for at in range(begin - low, end - high, shape["stride"])]

    windows, seen = Windows(path, **shape), []
    assert windows.starts.tolist() == starts
    with DataLoader(windows, 4, **order, device="cpu", with_index=True, memory=Memory(prefetch="8KiB")) as loader:
        for batch in loader:
            index = batch.pop("index").tolist()
            assert list(batch) == [name for name in arrays if name in offsets]
            for name, tensor in batch.items():
                wanted = arrays[name][np.array([starts[number] for number in index])[:, None] + offsets[name]]
                assert (tensor.shape, tensor.numpy().dtype) == (wanted.shape, wanted.dtype)
                assert tensor.numpy().tobytes() == wanted.tobytes()
            seen += index
        assert len(loader) == -(-len(starts) // 4)
        assert loader.stats.samples == len(starts)
    assert sorted(seen) == list(range(len(starts)))
    assert order["shuffle"] is not False or seen == sorted(seen)


def test_what_they_are(steps):
    windows = Windows(steps, 5, 2, within="episode")
    assert repr(windows).endswith(f"length=5, stride=2, within='episode': {len(windows)} windows)")
    assert len(Windows(steps, SAMPLES)) == 1
    assert len(Windows(steps, SAMPLES + 1)) == 0
    assert windows[-1]["frame"].shape == (5, 3, 2)
    assert windows.__getitems__([]) == []
    assert repr(Windows(steps, 4, step=5)).endswith(f"length=4, step=5, stride=1: {SAMPLES - 15} windows)")
    windows = Windows(steps, offsets={"reward": np.array([0, 5, 10]), "frame": (-3, 0), "done": [1, -2, 1]})
    offsets = {"frame": range(-3, 3, 3), "reward": range(0, 15, 5), "done": (1, -2, 1)}
    assert windows.offsets == offsets
    assert repr(windows).endswith(f"offsets={windows.offsets}, stride=1: {SAMPLES - 13} windows)")
    assert (windows.starts[0], windows.starts[-1], windows.length) == (3, SAMPLES - 11, None)
    assert len(Windows(steps, offsets={"reward": range(2**48)})) == len(Windows(steps, 2**24, step=2**24)) == 0
    with pytest.raises(ValueError, match="read-only"):
        windows.starts[0] = 1


ROBOT = {"frame": [-4, -1, 0], "reward": range(8), "done": [0, 7], "episode": [0]}
"""Offsets for each field: some of consecutive samples, and of three fields in one packed column."""
SHAPED = pytest.mark.parametrize("shape", [{"length": 4}, {"length": 4, "step": 3}, {"offsets": ROBOT}], ids=str)


@SHAPED
def test_parts_are_as_torchs_loader_makes_them_and_so_are_samplers_and_ranks(steps, shape):
    windows = Windows(steps, **shape, stride=4)
    first, second = random_split(windows, [0.7, 0.3], torch.Generator().manual_seed(0))
    for part in (first, second, ConcatDataset([second, first]), Subset(windows, [3, -1, 3])):
        with DataLoader(part, 5, device="cpu") as loader:
            found = list(loader)
        (wanted,) = torch.utils.data.DataLoader(part, len(part))
        joined = {name: torch.cat([batch[name] for batch in found]) for name in found[0]}
        assert fingerprint(joined) == fingerprint(wanted)
    with DataLoader(windows, 5, sampler=[7, 0, 7], device="cpu") as loader:
        (batch,) = loader
        (wanted,) = torch.utils.data.DataLoader(Subset(windows, [7, 0, 7]), 3)
        assert fingerprint(batch) == fingerprint(wanted)
    ranks = []
    for rank in range(3):
        with DataLoader(windows, 5, "full", ranks=(rank, 3), drop_last=True, device="cpu") as loader:
            ranks += [first for batch in loader for first in (batch["frame"][:, 0, 0, 0] // 10).tolist()]
    ranks = [first - windows.offsets["frame"][0] for first in ranks]
    assert len(set(ranks)) == len(ranks) == len(windows) // 15 * 15
    assert set(ranks) <= set(windows.starts.tolist())


@SHAPED
def test_resumed_at_every_step(steps, shape, shuffle):
    windows = Windows(steps, **shape, stride=2, within="episode")
    order = gdsload.BlockShuffle(block=8, window=16, lanes=2) if shuffle == "block" else shuffle

    def made(windows=windows):
        return DataLoader(windows, 16, order, device="cpu", mmap=shuffle is not False)

    assert_resumes_everywhere(made)
    with made() as loader:
        next(iter(loader))
        state = loader.state_dict()
    for other in ({"length": 3}, {"length": 4, "step": 2}, {"offsets": {**ROBOT, "done": [7, 0]}}):
        loader = made(Windows(steps, **other, stride=2, within="episode"))
        with loader, pytest.raises(gdsload.StateError, match="dataset"):
            loader.load_state_dict(state)


def test_windows_of_one_run_take_no_memory(tmp_path):
    """Of a row of billions of tokens, a table of begins would not fit."""
    with ShardWriter(tmp_path / "row", shard_bytes="1MiB") as writer:
        writer.write_batch({"token": np.arange(3_000_000, dtype=np.uint32).astype(np.uint8)})
    tracemalloc.start()
    windows = Windows(tmp_path / "row", 1000)
    for order in ({"shuffle": "full"}, {"shuffle": "block"}, {"sampler": [2_999_000, 0, 2_999_000]}):
        with DataLoader(windows, 4, **order, device="cpu") as loader:
            batch = next(iter(loader))["token"]
            assert torch.equal(batch.diff(dim=1), torch.ones_like(batch[:, 1:]))
            loader.state_dict()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 8 * len(windows) / 2


def test_no_such_window(steps):
    windows = Windows(steps, 2)
    with pytest.raises(SampleIndexError, match="window 299 does not exist: there are 299"):
        windows[299]


@pytest.mark.parametrize("shape", [(), (3,)])
def test_of_no_samples_there_are_none(tmp_path, shape):
    with ShardWriter(tmp_path / "none", {"x": "float32", "episode": Field("int64", shape)}):
        pass
    assert len(Windows(tmp_path / "none", 2, within="episode")) == 0


def test_a_dataset_of_documents_has_no_windows(tmp_path):
    with ShardWriter(tmp_path / "d", {"tokens": Field("uint16", (None,)), "text": "str"}) as writer:
        writer.write({"tokens": np.arange(100, dtype=np.uint16), "text": "a"})
    with pytest.raises(OptionError, match="all of the dataset's are ragged, texts or enc.* Convert .* `each='token'`"):
        Windows(tmp_path / "d", 8)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("bytes", "'x' is ragged or a text"),
        ("image", "'x' is encoded. Convert it without `keep_encoded`, or leave it out"),
    ],
)
def test_ragged_and_encoded_fields_are_left_out(tmp_path, kind, message):
    values = [b"\xff\xd8\xff" + end for end in (b"", b"a", b"ab")] * 2
    with ShardWriter(tmp_path / "d", {"n": "int64", "x": Field(kind)}) as writer:
        writer.write_batch({"n": np.arange(6), "x": values})
    with pytest.raises(OptionError, match=message):
        Windows(tmp_path / "d", offsets={"x": [0, 5]})
    for within, starts in ((None, [0, 1, 2, 3, 4]), ("x", [])):
        windows = Windows(tmp_path / "d", 2, within=within)
        assert windows.starts.tolist() == starts
        with pytest.raises(OptionError, match=message):
            DataLoader(windows, 2, device="cpu")
        with DataLoader(windows, 8, fields=["n"], device="cpu") as loader:
            assert [start for batch in loader for start in batch["n"][:, 0].tolist()] == starts
