"""Batches built in CPU memory go onto a device ahead of the consumer. In place of the device: memory of the CPU, into
which what was queued is copied when somebody waits for it, from memory that is filled with other bytes when it is used
again.
"""

import ctypes
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

import gdsload
from gdsload import BudgetError
from gdsload.engine.gpu import device_queue
from gdsload.engine.gpu.device_queue import DeviceQueue
from gdsload.loader import resources
from gdsload.loader.plan import LoaderPlan
from gdsload.system.memory import BatchPool, address_of
from gdsload.transforms import DecodeImage
from tests.loader.conftest import write_rich
from tests.loader.taking import begin, prints

STREAM = SimpleNamespace(stream_id=0, device_index=0, wait_stream=lambda _other: None)


class Device:
    """Copies when it is waited for; notes the tensors that it copies."""

    def __init__(self):
        self.queued, self.copied, self.pinned, self.lock = [], [], {}, threading.RLock()
        self.late = True  # else at once: what is computed of the copies here is not queued after them

    def pool(self, keep_bytes, *, pinned=False):
        """A pool whose memory this device copies from by itself, if it is pinned."""
        device = self

        class Pool(BatchPool):
            def lease(self, nbytes):
                lease = super().lease(nbytes)
                lease[:] = 171
                device.pinned[address_of(lease)] = lease.base  # held: nothing else gets the address
                return lease

        return Pool(keep_bytes) if pinned else BatchPool(keep_bytes)

    def copy(self, tensor):
        """Of pinned memory its address alone is held, as a GPU does; torch holds what it has pinned itself."""
        address = tensor.data_ptr()
        own = not any(begin <= address < begin + len(one) for begin, one in list(self.pinned.items()))
        made = torch.empty_like(tensor)
        with self.lock:
            self.copied.append(tensor.nbytes)
            self.queued.append((made, address, tensor.nbytes, tensor if own else None))
        if not self.late:
            self.synchronize()
        return made

    def synchronize(self):
        with self.lock:
            for made, address, nbytes, _ in self.queued:
                ctypes.memmove(made.data_ptr(), address, nbytes)
            self.queued.clear()


@pytest.fixture
def device(monkeypatch):
    """Has loaders copy batches ahead, to this."""
    found = Device()
    monkeypatch.setattr(LoaderPlan, "copies_ahead", True)
    monkeypatch.setattr(resources, "BatchPool", found.pool)
    monkeypatch.setattr(DeviceQueue, "copied", lambda _queue, tensor: found.copy(tensor))
    event = SimpleNamespace(synchronize=found.synchronize, record=lambda _stream: None)
    for name, fake in {
        "side_stream": lambda _device: STREAM, "current_stream": lambda _device: STREAM,
        "on": lambda _stream: nullcontext(), "record": lambda _stream: event, "new_event": lambda: event,
    }.items():  # fmt: skip
        monkeypatch.setattr(device_queue, name, fake)
    return found


@pytest.fixture
def check(load, device, monkeypatch):
    """Return whether batches on the device are those of a loader without one."""

    def same(*given, **options):
        found = prints(load(*given, **options))
        assert device.copied
        monkeypatch.setattr(LoaderPlan, "copies_ahead", False)
        assert found == prints(load(*given, **options))

    return same


@pytest.mark.parametrize(
    ("ragged", "mmap"), [("jagged", True), ("jagged", False), ("offsets", False), ("padded", True), ("varlen", True)]
)
def test_batches_are_those_of_the_cpu(check, rich, shuffle, ragged, mmap):
    check(rich, 17, shuffle, ragged=ragged, mmap=mmap, with_index=True, with_real=True)


@pytest.mark.parametrize("pack", [(), "auto"])
def test_packed_fields_and_windows(check, tmp_path, device, pack):
    device.late = False
    steps = gdsload.Windows(write_rich(tmp_path / "d", 80, pack_fields=pack), 4, 3)
    check(steps, 5, "full", fields=["image", "label", "flag", "u16", "bf16", "fp8"])


WHOLE = DecodeImage(size=20, on_error="zeros")


@pytest.mark.parametrize("options", [WHOLE, DecodeImage()], ids=["one size", "a list"])
def test_decoded_images(check, numbered_images, options):
    check(numbered_images, 7, "full", decode={"image": options})


@pytest.mark.parametrize("way", [{}, {"sample_transform": dict}])
def test_on_a_device_without_streams_the_consumers_thread_copies_and_waits(load, numbered_images, monkeypatch, way):
    """MPS would read memory that was freed meanwhile. What could be decoded, and indices, stay on the CPU."""
    given, real, meta = [], torch.Tensor.to, torch.device("meta")

    def to(tensor, *where, **options):
        given.append((where, options))
        return real(tensor, *where, **options)

    monkeypatch.setattr(LoaderPlan, "copies", True)
    loader = load(numbered_images, 10, decode={"image": WHOLE}, with_index=True, **way)
    monkeypatch.setattr(LoaderPlan, "device", meta)
    monkeypatch.setattr(torch.Tensor, "to", to)
    batch = next(iter(loader))
    assert [one for one in given if meta in one[0] or "device" in one[1]] == [((meta,), {})] * 2
    kinds = {name: value.device.type for name, value in batch.items()}
    assert kinds == {"image": "meta", "label": "meta", "index": "cpu", "image.decoded": "cpu"}


@pytest.mark.parametrize("ahead", [False, True])
def test_samples_that_were_transformed(check, rich, device, ahead):
    """Their tensors are copied, in any container, and their indices are not."""

    def change(sample):
        return {"pair": (sample["image"] * 2, [sample["label"]]), "text": sample["text"], "index": sample["index"]}

    check(rich, 17, "full", sample_transform=gdsload.PerSample(change, workers=2), ahead=ahead, with_index=True)
    assert sum(device.copied) == 143 * (15 * 4 + 8)


def test_device_transforms_get_what_is_on_the_device(check, plain):
    check(plain, 100, device_transform=lambda batch: batch["x"] * 2)


def test_batches_are_copied_before_they_are_asked_for(load, plain, device, soon):
    batches = begin(load(plain, 10))
    soon(lambda: len(device.copied) > 2)
    assert [int(batch["x"][0, 0]) for batch in batches] == list(range(10, 1000, 10))


def test_a_batch_that_is_kept_stays_what_it_is(load, plain, device):
    kept = list(load(plain, 10, memory=gdsload.Memory(prefetch="1KiB")))
    list(load(plain, 10, memory=gdsload.Memory(prefetch="1KiB")))
    assert torch.cat([batch["x"][:, 0] for batch in kept]).tolist() == list(range(1000))


@pytest.mark.parametrize("way", [{}, {"sample_transform": dict}])
def test_a_device_without_room_ends_the_epoch_and_says_what_to_do(load, plain, device, monkeypatch, way):
    def full(_queue, _tensor):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(DeviceQueue, "copied", full)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (1, 2**30))
    batches = iter(load(plain, 100, **way))
    with pytest.raises(BudgetError, match=r"cpu has no memory left for a group of batches.*Lower .*Memory.prefetch="):
        next(batches)
    with pytest.raises(BudgetError, match="has no memory left"):
        next(batches)
