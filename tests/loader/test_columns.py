"""Columns, lengths, and parts of a dataset: the same as its samples one by one, without a pass over the others."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

import gdsload
from gdsload import Field, SampleIndexError
from gdsload.testing import fingerprint
from tests.loader.conftest import rich_sample


@pytest.fixture
def opened(rich, mmap):
    """Opens it: pytest holds what fixtures give for longer than the threads of a dataset may live."""
    return partial(gdsload.ShardDataset, rich, mmap=mmap)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Enough samples and bytes for several pieces: 40 000 of a label, a text, tokens, and some long rows."""
    path = tmp_path_factory.mktemp("many") / "set"
    random = np.random.default_rng(3)
    rows = random.integers(0, 4, 40_000)
    rows[[7, 8, 20_000]] = 5 << 20  # of 4 bytes: 20 MiB each
    schema = {"label": "int64", "tokens": Field("int32", (None,)), "text": "str", "a": "uint8", "b": "int16"}
    with gdsload.ShardWriter(path, schema, shard_bytes="30MiB", pack_fields=["label", "a", "b"]) as writer:
        for low in range(0, 40_000, 5000):
            some = rows[low : low + 5000]
            numbers = np.arange(low, low + 5000)
            offsets = np.cumsum([0, *some])
            batch = {"label": numbers, "a": (numbers % 251).astype(np.uint8), "b": (numbers % 999).astype(np.int16)}
            tokens = np.repeat(numbers.astype(np.int32), some)
            writer.write_batch({**batch, "tokens": (tokens, offsets), "text": [str(number) for number in numbers]})
    return path, rows


@pytest.fixture
def many(written):
    return partial(gdsload.ShardDataset, written[0]), written[1]


class TestColumn:
    def test_it_is_the_batch_of_all_samples(self, opened):
        dataset = opened()
        whole = dataset.read_batch(range(len(dataset)))
        for name in dataset.schema:
            assert fingerprint(dataset.column(name)) == fingerprint(whole[name]), name

    def test_it_is_read_in_pieces(self, many):
        make, rows = many
        dataset = make()
        assert torch.equal(dataset.column("label"), torch.arange(40_000))
        assert torch.equal(dataset.column("b"), torch.arange(40_000).remainder(999).to(torch.int16))
        assert dataset.column("text") == [str(number) for number in range(40_000)]
        values, offsets = dataset.column("tokens")
        assert torch.equal(offsets.diff(), torch.from_numpy(rows))
        numbers = torch.arange(40_000, dtype=torch.int32)
        assert torch.equal(values, torch.repeat_interleave(numbers, torch.from_numpy(rows)))

    def test_of_nothing(self, tmp_path):
        with gdsload.ShardWriter(tmp_path / "set", {"x": Field("float16", (2,)), "r": Field("int8", (None, 3))}):
            pass
        dataset = gdsload.ShardDataset(tmp_path / "set")
        assert (dataset.column("x").shape, dataset.column("x").dtype) == ((0, 2), torch.float16)
        values, offsets = dataset.column("r")
        assert (values.shape, offsets.tolist(), dataset.lengths("r").shape) == ((0, 3), [0], (0,))
        assert len(dataset.filter(lambda _: pytest.fail("there is nothing"))) == 0

    def test_it_may_be_written_to_and_used_behind_inference_mode(self, opened):
        dataset = opened()
        with torch.inference_mode():
            label = dataset.column("label")
        assert label.add_(1)[0] == 1
        assert dataset.column("label")[0] == 0


class TestLengths:
    @pytest.mark.parametrize("name", ["points", "normals", "codes", "ragged_fp8", "text", "blob"])
    def test_they_are_the_samples_own(self, opened, name):
        dataset = opened()
        samples = [rich_sample(number)[name] for number in range(len(dataset))]
        found = dataset.lengths(name)
        assert (found.dtype, found.shape) == (torch.int64, (143,))
        assert found.tolist() == [len(one.encode() if isinstance(one, str) else one) for one in samples]

    def test_nothing_but_offsets_is_read(self, written):
        """60 MiB of tokens, and 40 000 offsets of 8 bytes."""

        def bytes_read():
            lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
            return int(lines["rchar"])

        path, rows = written
        dataset = gdsload.ShardDataset(path, mmap=False)
        began = bytes_read()
        assert torch.equal(dataset.lengths("tokens"), torch.from_numpy(rows))
        assert bytes_read() - began < 2**21


class TestReadBatch:
    def test_some_fields_are_those_of_all(self, opened, expect_rich):
        dataset = opened()
        ids = [5, -1, 5, 100]
        found = dataset.read_batch(ids, fields=["text", "label", "points"])
        assert list(found) == ["label", "points", "text"]
        expect_rich(found, [5, 142, 5, 100])

    def test_packed_fields_one_by_one(self, many):
        dataset = many[0]()
        assert list(dataset.read_batch([3, 2], fields=["b"])) == ["b"]
        assert dataset.read_batch([3, 2], fields=["b"])["b"].tolist() == [3, 2]

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, np.int16, np.uint64])
    def test_indices_of_any_type(self, opened, dtype):
        dataset = opened()
        made = torch.tensor([2, 1]).to(dtype) if isinstance(dtype, torch.dtype) else np.array([2, 1], dtype)
        assert dataset.read_batch(made, fields=["label"])["label"].tolist() == [2, 1]


class TestParts:
    def test_select_is_a_subset_in_its_order(self, load, opened):
        dataset = opened()
        part = dataset.select([7, -1, 7, 0])
        assert type(part) is Subset
        assert (part.indices.tolist(), part.indices.dtype) == ([7, 142, 7, 0], np.int64)
        (batch,) = load(part, 4, fields=["label"])
        assert batch["label"].tolist() == [7, 142, 7, 0]
        assert [part[number]["label"].item() for number in range(4)] == [7, 142, 7, 0]

    def test_what_was_selected_does_not_follow_the_array_that_said_it(self, opened):
        wanted = np.array([7, 3])
        part = opened().select(wanted)
        wanted[:] = 0
        assert [part[number]["label"].item() for number in range(2)] == [7, 3]

    def test_select_refuses_what_is_outside(self, opened):
        dataset = opened()
        for outside in (143, 2**64 - 1, -(2**63) - 1):
            with pytest.raises(SampleIndexError, match=f"sample {outside} does not exist"):
                dataset.select([0, outside])

    def test_filter_is_select_of_what_the_predicate_says(self, load, opened):
        dataset = opened()
        wanted = [
            number
            for number in range(143)
            if len(rich_sample(number)["points"]) > 2 and rich_sample(number)["text"] and number % 3 == 0
        ]
        seen = []

        def keep(batch):
            seen.append(list(batch))
            texts = torch.tensor([bool(text) for text in batch["text"]])
            return (batch["points"][1].diff() > 2) & texts & (batch["label"] % 3 == 0)

        part = dataset.filter(keep, fields=["text", "points", "label"])
        assert part.indices.tolist() == wanted
        assert seen == [["label", "points", "text"]]
        found = [number for batch in load(part, 7, "full", fields=["label"]) for number in batch["label"].tolist()]
        assert sorted(found) == wanted

    def test_filter_goes_through_all_pieces(self, many):
        make, rows = many
        dataset = make()
        sizes = []

        def keep(batch):
            sizes.append(len(batch["label"]))
            return (batch["label"].numpy() % 1000) == 7

        assert dataset.filter(keep, fields=["label"]).indices.tolist() == list(range(7, 40_000, 1000))
        assert sizes == [16_384, 16_384, 7232]
        long = dataset.filter(lambda batch: batch["tokens"][1].diff() > 3, fields=["tokens"])
        assert long.indices.tolist() == np.flatnonzero(rows > 3).tolist()
