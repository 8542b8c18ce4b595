"""Batches handed to a consumer that queues without waiting: how far it may be ahead of the GPU."""

import threading
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gdsload import Field
from gdsload.backends.base import PendingRead
from gdsload.engine.assemble import BatchForm
from gdsload.engine.codecs import codecs_of
from gdsload.engine.gpu import assemble_device, device_queue
from gdsload.engine.gpu.device_queue import DeviceQueue
from gdsload.engine.loaded_rows import LoadedRows, RowMap, RowSlice, Slices
from gdsload.kernels.gather_device import DeviceGather
from gdsload.shards.format.schema import Schema
from gdsload.shards.format.stored import StoredSchema
from gdsload.system.pool import done

PENDING, BATCH = 8000, 500


class Event:
    """Past when the GPU has come so far, or has been waited for."""

    def __init__(self, gpu):
        self.gpu = gpu
        gpu.made += 1

    def record(self, stream):
        self.at = self.gpu.queued
        self.gpu.recorded.append(stream)

    def synchronize(self):
        if self.gpu.done < self.at:
            self.gpu.waits += 1
            self.gpu.done = self.at


@pytest.fixture
def gpu(monkeypatch):
    """How many batches were handed out, and how many the GPU is through with."""
    found = SimpleNamespace(queued=0, done=0, waits=0, made=0, recorded=[], current=7)
    monkeypatch.setattr(torch.cuda, "Event", lambda *, blocking: Event(found) if blocking else None)
    monkeypatch.setattr(device_queue, "current_stream", lambda _device: Stream(found.current))
    monkeypatch.setattr(device_queue, "side_stream", lambda _device: None)
    return found


def queue(device):
    return DeviceQueue(torch.device(device), pending_bytes=PENDING)


class Stream(SimpleNamespace):
    def __init__(self, handle):
        super().__init__(stream_id=handle, device_index=0)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_is_queued_has_ended_after_an_error(monkeypatch, error):
    stream, now, ended = Stream(1), [], []

    @contextmanager
    def on(stream):
        now.append(stream)
        yield
        now.clear()

    event = SimpleNamespace(synchronize=lambda: ended.append(now[0]))
    fakes = {"on": on, "side_stream": lambda _device: stream, "record": lambda _stream: event}
    for name, fake in fakes.items():
        monkeypatch.setattr(device_queue, name, fake)
    queue = device_queue.DeviceQueue(torch.device("cuda", 0))
    with pytest.raises(error), queue.making():
        raise error
    assert ended == [stream]


def hand_out(gpu, batches):
    """The most bytes of batches that were dropped while the GPU might still have been reading them."""
    give, most = queue("cpu").throttle, 0
    for _ in range(batches):
        give(Stream(gpu.current), BATCH)
        gpu.queued += 1
        most = max(most, (gpu.queued - 1 - gpu.done) * BATCH)
        yield most


def test_a_consumer_that_never_waits_is_held_back(gpu):
    *_, most = hand_out(gpu, 1000)
    assert PENDING / 2 < most <= PENDING + BATCH
    assert gpu.waits > 100
    assert len(gpu.recorded) <= 1000 * BATCH * 8 / PENDING + 1, "an event for every eighth, not for every batch"
    assert gpu.made <= 9, "events are used again"


def test_events_are_behind_what_the_consumer_queues_on_the_stream_that_it_uses_now(gpu):
    for number, _ in enumerate(hand_out(gpu, 100)):
        gpu.current = 7 if number < 50 else 9
    handles = [stream.stream_id for stream in gpu.recorded]
    assert handles == sorted(handles)
    assert set(handles) == {7, 9}


@pytest.mark.parametrize("stops", [1, 12])
def test_one_that_the_gpu_keeps_up_with_never_waits(gpu, stops):
    """Nor one that stops for a while now and then: what is long past does not hold it back."""
    for number, _ in enumerate(hand_out(gpu, 1000)):
        if number % stops == 0:
            gpu.done = max(gpu.queued - 3 * (stops == 1), 0)
    assert not gpu.waits


class Tensor:
    """One on a device, in memory of 64 bytes at an address."""

    is_nested, nbytes = False, 8
    is_conj = is_neg = staticmethod(lambda: False)

    def __init__(self, recorded, device, memory, address):
        self.recorded, self.device = recorded, torch.device(device)
        self.is_cuda, self.get_device = self.device.type == "cuda", lambda: self.device.index
        self.data_ptr = lambda: address
        self.untyped_storage = lambda: SimpleNamespace(data_ptr=lambda: memory, nbytes=lambda: 64)

    def record_stream(self, stream):
        self.recorded.append((str(self.device), self.untyped_storage().data_ptr(), stream))


@pytest.fixture
def recorded(monkeypatch):
    """Devices, memory and streams, as they were recorded."""
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: f"current of {device}")
    monkeypatch.setattr(device_queue, "tensors_of", list)
    return []


def test_memory_is_handed_to_the_stream_that_is_current_on_its_device(recorded):
    mine = SimpleNamespace(device_index=0)
    batch = [Tensor(recorded, *each) for each in (("cuda:0", 64, 72), ("cuda:1", 128, 128), ("cpu", 256, 256))]
    assert device_queue.hand_over(batch, mine) == 24
    assert recorded == [("cuda:0", 64, mine), ("cuda:1", 128, "current of cuda:1")]
    recorded.clear()  # of memory that several share, once, wherever in it they are, and also where it takes turns
    places = ((64, 72), (64, 64), (64, 127), (128, 128), (128, 160), (64, 80))
    some = [Tensor(recorded, "cuda:0", *place) for place in places]
    assert device_queue.hand_over(some, mine) == 48
    assert recorded == [("cuda:0", 64, mine), ("cuda:0", 128, mine)]


@pytest.mark.parametrize("view", [torch.Tensor.conj, lambda x: x.mH, lambda x: x.conj().imag, lambda x: x.real])
def test_what_is_recorded_of_a_view(view):
    """The same memory, by a tensor whose numbers are those in memory."""
    whole = torch.ones(2, 2, dtype=torch.complex64)
    found = device_queue.recordable(view(whole))
    assert found.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    assert not found.is_conj()
    assert not found.is_neg()


def test_memory_of_a_group_is_recorded_once_for_each_stream_that_gets_some_of_it(gpu, recorded):
    """At the first batch for its stream, and then for each batch that another stream gets."""
    group = [[Tensor(recorded, "cuda:0", *place)] for place in ((64, 64), (64, 80), (128, 128), (128, 144))]
    give = queue("cuda:0").hand_over(group)
    assert not recorded
    assert give(group[0]) is group[0]
    assert [(memory, stream.stream_id) for _, memory, stream in recorded] == [(64, 7), (128, 7)]
    give(group[1])
    assert len(recorded) == 2
    gpu.current = 9
    give(group[2])
    assert [(memory, stream.stream_id) for _, memory, stream in recorded[2:]] == [(128, 9)]
    gpu.current = 7
    give(group[3])
    assert len(recorded) == 3


def test_memory_of_another_device_is_recorded_for_the_stream_that_is_current_there_each_time(
    gpu, recorded, monkeypatch
):
    elsewhere = iter(["first", "first", "second"])
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda _device: next(elsewhere))
    group = [[Tensor(recorded, "cuda:0", 64, 64), Tensor(recorded, "cuda:1", low, low)] for low in (128, 192)]
    give = queue("cuda:0").hand_over(group)
    give(group[0])
    assert [memory for _, memory, _ in recorded] == [64, 128, 192]
    give(group[1])
    assert [stream for _, memory, stream in recorded if memory == 192] == ["first", "second"]


def test_each_batch_is_throttled_by_its_own_bytes(gpu, monkeypatch):
    noted = []
    monkeypatch.setattr(DeviceQueue, "throttle", lambda _self, stream, nbytes: noted.append((stream.stream_id, nbytes)))
    group = [{"x": torch.empty(size, dtype=torch.uint8)} for size in (3, 5, 7)]
    give = queue("cpu").hand_over(group)
    for batch in group:
        give(batch)
    assert noted == [(7, 3), (7, 5), (7, 7)]


def test_a_group_is_not_held_once_its_first_batch_is_there(gpu):
    group = [{"x": torch.empty(BATCH, dtype=torch.uint8)} for _ in range(3)]
    alive = [weakref.ref(batch["x"]) for batch in group]
    give = queue("cpu").hand_over(group)
    give(group.pop(0))
    give(group.pop(0))
    assert [found() is None for found in alive] == [True, True, False]


def test_waiting_for_the_gpu_holds_nobody_else_up(gpu, monkeypatch, in_thread):
    """Work that is waited for may have to be queued by another thread, which hands batches over as well."""
    give, inside, go_on = queue("cpu").throttle, threading.Event(), threading.Event()

    def wait(_event):
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            assert go_on.wait(20)

    monkeypatch.setattr(Event, "synchronize", wait)
    giving = in_thread(lambda: [give(Stream(7), BATCH) for _ in range(40)])
    assert inside.wait(20)
    give(Stream(7), BATCH)
    go_on.set()
    giving.result(timeout=20)


def test_lengths_of_a_batch_that_are_changed_in_place_concern_no_others_gradients():
    """A transform on the device may clamp those of the next batch while this one is trained on."""
    maker = SimpleNamespace(onto=SimpleNamespace(copied=lambda tensor: tensor))
    first, second = assemble_device.DeviceAssembler.tensors(maker, np.arange(5), [2, 3])
    weight = torch.ones(2, requires_grad=True)
    loss = (weight * first).sum()
    second.clamp_(max=1)
    loss.backward()
    assert (weight.grad.tolist(), second.tolist()) == ([0, 1], [1, 1, 1])
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


@pytest.mark.parametrize("field", [Field("uint8", (None,)), Field("bytes")], ids=["tensors", "byte strings"])
def test_no_copy_goes_from_one_allocation_into_the_next(field, monkeypatch):
    """Memory of two allocations may be neighbours; the driver refuses a copy of parts of both."""
    monkeypatch.setattr(
        assemble_device,
        "batch_tensors",
        lambda counts, field, _device: [torch.empty(count * field.row_bytes, dtype=torch.uint8) for count in counts],
    )
    stored, memory, size, copied = StoredSchema(Schema({"x": field})), np.zeros(2**22, np.uint8), 2**18, []
    begin = memory.ctypes.data
    chunks, addresses = begin + np.array([0, 2**21]), begin + np.arange(16) * size

    class Gather(DeviceGather):
        def copies(self, sources, nbytes, _targets):
            copied.extend(zip(np.array(sources).tolist(), np.array(nbytes).tolist(), strict=True))

        def upload(self, array):
            return torch.from_numpy(np.array(array))

    class OnCpu(assemble_device.DeviceAssembler):
        def __init__(self):
            self.form, self.device = BatchForm(codecs_of(stored, ("x",), "offsets"), fields=("x",)), torch.device("cpu")
            self.gather = Gather(self.device, lambda addresses: np.zeros(addresses.shape, np.bool_), kernel=True)

    found = {"x": RowMap(addresses, np.full(16, size))}
    rows = LoadedRows(found, np.arange(16), np.zeros(1, np.int64), PendingRead(addresses, done, begins=chunks), 16)
    OnCpu().assemble(Slices([RowSlice(rows, slice(None), 16)]), [16])
    assert sum(nbytes for _, nbytes in copied) == memory.nbytes
    assert not any(source < chunks[1] < source + nbytes for source, nbytes in copied)
