"""A batch is its holder's: never overwritten, never seen again, and its memory comes back after it."""

import gc
import io
import itertools
import os
import random

import numpy as np
import pytest
import torch

import gdsload
from gdsload import Field, Memory
from gdsload.engine.gpu.plain_tensors import tensors_of
from gdsload.testing import fingerprint
from tests.loader.taking import BLOCK
from tests.page_cache import open_paths

OTHERS = {"x": Field("float32", (2,)), "r": Field("float32", (None, 2))}


def test_what_is_done_to_a_sample_concerns_no_other_ones_gradients(tmp_path):
    """As of views of one tensor it would. Of packed fields, of others, and of ragged ones."""
    with gdsload.ShardWriter(tmp_path / "d", {**dict.fromkeys("abcd", Field("float32")), **OTHERS}) as writer:
        for number in range(3):
            writer.write({**dict.fromkeys("abcd", float(number)), "x": [1.0, 1.0], "r": [[1.0, 2.0]]})
    dataset = gdsload.ShardDataset(tmp_path / "d")
    first, second, alone = (*dataset.__getitems__([0, 1]), dataset[2])
    for name in (*"abcd", "x", "r"):
        weight = torch.nn.Parameter(torch.tensor(2.0))
        loss = (first[name] * weight).sum()
        second[name].add_(1)
        loss.backward()
        for sample in (second, alone):
            sample[name].mul_(weight)
            assert sample[name].requires_grad
        assert not first[name].requires_grad


@pytest.mark.parametrize(
    ("mmap", "ragged", "prefetch_bytes"),
    [(True, "jagged", 1), (False, "offsets", 1), (True, "padded", "1MiB"), (False, "jagged", "1MiB")],
)
def test_batches_that_are_kept_stay_as_they_were(load, rich, mmap, ragged, prefetch_bytes):
    loader = load(rich, 3, mmap=mmap, ragged=ragged, memory=Memory(prefetch=prefetch_bytes), with_index=True, **BLOCK)
    chosen = random.Random(1)
    kept = []
    for _ in range(3):
        for batch in loader:
            kept.append((batch, fingerprint(batch)))
            if len(kept) > 30:
                kept.pop(chosen.randrange(len(kept)))
    loader.close()
    gc.collect()
    assert all(fingerprint(batch) == was for batch, was in kept)


def test_a_single_tensor_keeps_its_memory(load, plain):
    """Of a group of batches that share a piece of memory, a view into one of them is all that is held."""
    loader = load(plain, 4)
    kept = {}
    for epoch in range(5):
        for step, batch in enumerate(loader):
            if step % 50 == epoch:
                kept[epoch, step] = batch["x"][1:2].T[3:]
    for (_, step), view in kept.items():
        assert view.tolist() == [[4 * step + 1]] * 5


@pytest.mark.parametrize("ragged", ["jagged", "offsets", "padded", "varlen"])
def test_what_is_done_to_a_batch_is_seen_nowhere_else(load, rich, mmap, ragged):
    dataset = gdsload.ShardDataset(rich, mmap=mmap)
    before = [fingerprint(dataset[index]) for index in range(0, len(dataset), 9)]
    options = {"mmap": mmap, "ragged": ragged, "with_index": True}
    reference = [fingerprint(batch) for batch in load(rich, 10, **options)]
    loader = load(dataset, 10, **options)
    for _ in range(2):
        found = []
        for batch in loader:
            found.append(fingerprint(batch))
            for tensor in tensors_of(batch):
                tensor.view(torch.uint8).fill_(0xA5)
        assert found == reference
    assert [fingerprint(dataset[index]) for index in range(0, len(dataset), 9)] == before
    assert dataset.verify()


def test_fields_of_a_batch_share_no_memory(load, rich):
    for batch in load(rich, 7, ragged="offsets", fields=["image", "u16", "points", "codes"]):
        values = [value[0] if isinstance(value, tuple) else value for value in batch.values()]
        edges = sorted((value.data_ptr(), value.data_ptr() + value.nbytes) for value in values if value.nbytes)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(edges))


@pytest.mark.parametrize("ragged", ["offsets", "padded"])
@pytest.mark.parametrize("prefetch_bytes", [1, 1000, "1MiB"])
def test_nor_do_lengths_that_are_equal_by_accident(load, tmp_path, ragged, prefetch_bytes):
    """In one group or another: what is changed in place may not depend on what was read together."""
    lengths = [number % 4 + 1 for number in range(200)]
    others = [1 if number % 20 == 19 else length for number, length in enumerate(lengths)]
    with gdsload.ShardWriter(tmp_path / "d", dict.fromkeys("abc", Field("int32", (None,)))) as writer:
        writer.write_batch(
            {name: [torch.ones(length, dtype=torch.int32) for length in given]
             for name, given in (("a", lengths), ("b", others), ("c", lengths))}
        )  # fmt: skip

    def changed(batch):
        for name, most in (("a", 2), ("c", 1)):
            batch[name][1].clamp_(max=most)
        return batch

    options = {"ragged": ragged, "memory": Memory(prefetch=prefetch_bytes)}
    loader = load(tmp_path / "d", 2, device_transform=changed, **options)
    for batch, plain in zip(loader, load(tmp_path / "d", 2, **options), strict=True):
        assert torch.equal(batch["b"][1], plain["b"][1])
        assert torch.equal(batch["a"][1], plain["a"][1].clamp(max=2))
        assert torch.equal(batch["c"][1], plain["c"][1].clamp(max=1))


def test_tensors_are_ordinary(load, rich):
    batch = next(iter(load(rich, 5, ragged="offsets")))
    for tensor in tensors_of(batch):
        assert tensor.is_contiguous()
        assert not tensor.requires_grad
        assert tensor.device == torch.device("cpu")
    image = batch["image"]
    image.requires_grad_().sum().backward()
    assert torch.equal(image.grad, torch.ones_like(image))
    assert torch.from_numpy(image.detach().numpy()).data_ptr() == image.data_ptr()


def test_a_saved_batch_is_as_large_as_it_is(load, plain):
    """Not as large as the memory that its neighbours were gathered into."""
    for batch in load(plain, 4):
        file = io.BytesIO()
        torch.save(batch, file)
        assert len(file.getvalue()) < 4 * 32 + 2500
        file.seek(0)
        assert torch.equal(torch.load(file)["x"], batch["x"])


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """64 MiB in samples of 64 KiB."""
    path = tmp_path_factory.mktemp("large") / "large"
    with gdsload.ShardWriter(path, shard_bytes="16MiB") as writer:
        for number in range(8):
            writer.write_batch({"x": np.full((128, 16384), number, np.int32)})
    return path


class TestMemoryIsBounded:
    def anonymous(self):
        """Resident memory that is not the page cache's."""
        with open("/proc/self/statm", encoding="ascii") as file:
            _, resident, shared, *_ = map(int, file.read().split())
        return (resident - shared) * os.sysconf("SC_PAGESIZE")

    @pytest.mark.parametrize("use", [list, lambda loader: next(iter(loader))], ids=["whole", "abandoned"])
    def test_over_many_epochs(self, load, large, mmap, use):
        loader = load(large, 8, "full", mmap=mmap, memory=Memory(prefetch="4MiB"), transform=len)
        marks = []
        for _ in range(20):
            use(loader)
            marks.append(self.anonymous())
        assert max(marks[10:]) - max(marks[:10]) < 8 * 2**20

    def test_when_loaders_are_dropped_without_being_closed(self, large, mmap, soon):
        marks = []
        for _ in range(10):
            loader = gdsload.DataLoader(large, 8, "full", device="cpu", mmap=mmap, memory=Memory(prefetch="4MiB"))
            next(iter(loader))
            del loader
            # Threads of a loader that was dropped a moment ago may still be on their way out.
            soon(lambda: max(len(mappings(large)), len(open_paths(large))) <= 4 * 4)
            marks.append(self.anonymous())
        assert max(marks[5:]) - max(marks[:5]) < 8 * 2**20
        soon(lambda: mappings(large) == open_paths(large) == [])

    def test_a_loader_whose_transforms_refer_to_it_can_be_dropped(self, large, soon):
        """Methods of an object that has the loader."""

        class Training:
            def __init__(self):
                options = {"sample_transform": self.changed, "collate_fn": self.collated}
                self.loader = gdsload.DataLoader(large, 8, device="cpu", **options)
                list(self.loader)

            def changed(self, sample):
                return sample

            def collated(self, samples):
                return len(samples)

        Training()
        gc.collect()
        soon(lambda: mappings(large) == open_paths(large) == [])

    def test_after_close_nothing_is_mapped_or_open(self, load, large):
        loader = load(large, 8)
        iterator = iter(loader)
        batch = next(iterator)
        assert mappings(large)
        loader.close()
        assert mappings(large) == []
        assert open_paths(large) == []
        assert batch["x"].unique().tolist() == [0]

    def test_memory_of_batches_is_used_again(self, load, large):
        """Fresh pages for each batch would cost more than copying the batch does."""
        loader = load(large, 8, memory=Memory(prefetch="2MiB"))
        addresses = [batch["x"].data_ptr() for _ in range(3) for batch in loader]
        assert len(set(addresses)) < len(addresses) / 4


def mappings(folder):
    with open("/proc/self/maps", encoding="utf-8") as file:
        return [line for line in file if str(folder) in line]
