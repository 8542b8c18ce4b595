"""A failure is raised once, in the consumer's thread, at the batch it belongs to; all batches before it come first."""

import errno
import os
import threading
import time

import numpy as np
import pytest
from torch.utils.data import default_collate

import gdsload
from gdsload import FileChangedError, FormatError, LoaderClosedError, ReadError, ShortReadError
from gdsload.testing import Fault, FaultyBackend
from tests.loader.taking import BLOCK, begin, collect, firsts, numbers


def data_offset(path, sample):
    """The place of a sample of the plain dataset: (file index, byte offset)."""
    dataset = gdsload.ShardDataset(path)
    file = sample // int(dataset.counts[0])
    with open(dataset.shards[file].file, "rb") as stream:
        content = stream.read()
    return file, content.index(np.full(8, sample, np.int32).tobytes())


WAYS = [(mmap, when) for mmap in (True, False) for when in ("read", "completion")]
"""Pairs: True if shards are mapped, and the place of the failure."""


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("sample", [0, 307, 999])
def test_a_sample_that_cannot_be_read(load, plain, wrap, order, way, sample):
    mmap, when = way
    file, offset = data_offset(plain, sample)
    path = gdsload.ShardDataset(plain).shards[file].file
    wanted = numbers(load(plain, 10, with_index=True, **order))
    bad = next(step for step, batch in enumerate(wanted) if sample in batch)
    fault = Fault(lambda: ReadError("reading failed", file=path, offset=offset), places=[(file, offset + 3)], when=when)
    made = wrap(lambda inner: FaultyBackend(inner, fault))
    loader = load(plain, 10, mmap=mmap, with_index=True, **order)
    iterator = iter(loader)
    found, error = collect(iterator)
    if order == BLOCK and not mmap:
        # A window is read as a whole, so the error comes where its first sample does.
        bad = len(found)
        assert bad <= next(step for step, batch in enumerate(wanted) if sample in batch)
    assert found == wanted[:bad]
    assert isinstance(error, ReadError)
    assert (error.file, error.offset) == (path, offset)
    for _ in range(2):  # an epoch that was cut short must not look like one that is through
        with pytest.raises(ReadError, match="reading failed") as again:
            next(iterator)
        assert (again.value.file, again.value.offset) == (path, offset)
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (0, 10 * bad)
    assert sorted(index for batch in collect(loader)[0] for index in batch) != list(range(1000)), (
        "the next epoch fails, too"
    )

    made[0].faults.clear()
    loader.load_state_dict(state)
    assert collect(loader) == (wanted[bad:], None)
    assert len(collect(loader)[0]) == 100


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("calls", [[0], [1], [2, 3, 5], range(1, 60, 4)], ids=str)
def test_a_read_that_works_the_second_time_leaves_no_gap(load, plain, wrap, order, way, calls):
    """However it is handled: if no error comes, all batches come."""
    mmap, when = way
    wanted = numbers(load(plain, 10, with_index=True, **order))
    fault = Fault(lambda: ReadError("reading failed"), calls=calls, when=when, times=len(calls))
    made = wrap(lambda inner: FaultyBackend(inner, fault))
    loader = load(plain, 10, mmap=mmap, with_index=True, **order)
    found, error = collect(loader)
    assert made[0].struck
    assert found == (wanted if error is None else wanted[: len(found)])
    if error is not None:
        assert loader.state_dict()["position"] == 10 * len(found)


@pytest.mark.parametrize(
    "made", [MemoryError("no memory"), StopIteration("stop"), RuntimeError("odd"), OSError(5, "io")]
)
@pytest.mark.parametrize("when", ["read", "completion", "check"])
def test_errors_of_any_class_come_out(load, plain, wrap, made, when):
    wrap(lambda inner: FaultyBackend(inner, Fault(lambda: made, files=[2], when=when)))
    found, error = collect(iter(load(plain, 32, with_index=True)))
    assert found == [list(range(32 * step, 32 * step + 32)) for step in range(16)]
    assert isinstance(error, RuntimeError if isinstance(made, StopIteration) else type(made))


class TestDamagedFiles:
    @pytest.mark.parametrize("what", ["cut short", "removed", "replaced", "written to"])
    def test_while_they_are_in_use(self, load, own_plain, mmap, what):
        loader = load(own_plain, 8, with_index=True, mmap=mmap, memory=gdsload.Memory(prefetch=1))
        iterator = iter(loader)
        before = [next(iterator)["index"].tolist() for _ in range(70)]
        # Nobody reads a mapped file at the moment in which it is cut short: that is the documented exception.
        time.sleep(0.1)
        spoil(own_plain, 2, what)
        time.sleep(0.03)
        found, error = collect(iterator)
        assert before + found == [list(range(8 * step, 8 * step + 8)) for step in range(len(before + found))]
        assert isinstance(error, FileChangedError | ShortReadError)
        assert error.file.endswith("shard-00002.safetensors")
        with pytest.raises(type(error), match="shard-00002"):
            next(iterator)

    def test_text_that_is_no_unicode(self, load, tmp_path):
        with gdsload.ShardWriter(tmp_path / "set", {"text": "str"}) as writer:
            writer.write_batch({"text": [f"text number {number}" for number in range(100)]})
        shard = tmp_path / "set" / "shard-00000.safetensors"
        data = bytearray(shard.read_bytes())
        data[data.index(b"text number 57")] = 0xFF
        shard.write_bytes(data)
        found, error = collect(load(tmp_path / "set", 10, with_index=True))
        assert len(found) == 5
        assert isinstance(error, FormatError)
        assert "field 'text' holds a text that is no valid UTF-8" in str(error)
        assert "verify" in str(error)

    def test_too_few_descriptors(self, load, own_plain, mmap, monkeypatch):
        def refuse(*_args, **_options):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        loader = load(own_plain, 10, mmap=mmap)
        monkeypatch.setattr("gdsload.shards.local_files.os.open", refuse)
        with pytest.raises(ReadError, match="shard-00000.*cannot be opened: Too many open files"):
            next(iter(loader))
        monkeypatch.undo()
        loader.set_epoch(0)
        assert len(list(loader)) == 100


NOTES = {
    "transform": [],
    "device_transform": ["in device_transform, for the batch of step {step} of epoch 0"],
    "sample_transform": [
        "in sample_transform, for sample {bad} of the dataset", "in the batch of step {step} of epoch 0"
    ],
    "collate_fn": ["in collate_fn, for 10 samples", "in the batch of step {step} of epoch 0"],
}  # fmt: skip


class TestTransform:
    @pytest.mark.parametrize("ahead", [True, False])
    @pytest.mark.parametrize("bad", [0, 537, 999])
    @pytest.mark.parametrize("hook", NOTES)
    def test_its_error_comes_out_once_at_its_batch_and_says_where(self, load, plain, hook, bad, ahead):
        """The epoch goes on with the batch after it, and a run that is resumed tries the batch again."""
        step, seen = bad // 10, []

        def fail(given):
            made = default_collate(given) if hook == "collate_fn" else given
            numbers = made["x"].reshape(-1, 8)[:, 0].tolist()
            seen.extend(numbers)
            if bad in numbers and failing:
                raise ZeroDivisionError("bad luck")
            return made

        failing = True
        loader = load(plain, 10, ahead=ahead, **{hook: fail})
        iterator = begin(loader, step)
        with pytest.raises(ZeroDivisionError, match="bad luck") as caught:
            next(iterator)
        notes = [note.format(step=step, bad=bad) for note in NOTES[hook]]
        assert getattr(caught.value, "__notes__", [])[-len(notes) :] == notes
        state = loader.state_dict()
        assert state["position"] == 10 * step
        assert len(list(iterator)) == 99 - step
        assert len(seen) == len(set(seen)), "nothing is transformed twice"
        failing = False
        loader.load_state_dict(state)
        assert [first for first, *_ in firsts(loader)] == list(range(10 * step, 1000, 10))

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, StopIteration, SystemExit])
    def test_its_error_is_the_batchs(self, load, plain, kind):
        def fail(batch):
            if batch["index"][0] == 300 and failing:
                raise kind("my own")
            return batch

        failing = True
        loader = load(plain, 10, with_index=True, transform=fail)
        iterator = iter(loader)
        found = [next(iterator)["index"].tolist() for _ in range(30)]
        expected = RuntimeError if kind is StopIteration else kind
        with pytest.raises(expected, match="StopIteration" if kind is StopIteration else "my own"):
            next(iterator)
        state = loader.state_dict()
        assert state["position"] == 300
        if issubclass(expected, Exception):
            assert next(iterator)["index"][0] == 310
        else:
            with pytest.raises(LoaderClosedError, match=f"ended with {kind.__name__}: my own"):
                next(iterator)
        failing = False
        loader.load_state_dict(state)
        found += collect(loader)[0]
        assert found == [list(range(10 * step, 10 * step + 10)) for step in range(100)]

    def test_it_runs_in_the_consumers_thread_once_for_each_batch(self, load, plain):
        seen = []
        loader = load(plain, 10, transform=lambda _: seen.append(threading.get_ident()) or len(seen))
        assert list(loader) == list(range(1, 101))
        assert set(seen) == {threading.get_ident()}

    def test_it_may_close_the_loader(self, load, plain):
        loader = load(plain, 10, transform=lambda batch: loader.close() or batch)
        iterator = begin(loader)
        with pytest.raises(LoaderClosedError, match="closed"):
            next(iterator)


def spoil(folder, number, what):
    path = os.path.join(folder, f"shard-{number:05d}.safetensors")
    if what == "cut short":
        os.truncate(path, 4096)
    elif what == "removed":
        os.remove(path)
    elif what == "replaced":
        with open(path, "rb") as old, open(path + ".new", "wb") as new:
            new.write(old.read())
        os.replace(path + ".new", path)
    else:
        with open(path, "r+b") as file:
            file.write(file.read(1))
