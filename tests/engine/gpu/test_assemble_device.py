"""Batches handed to a consumer that queues without waiting: how far it may be ahead of the GPU."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch

from gdsload.engine.gpu import assemble_device
from gdsload.engine.gpu.assemble_device import ConsumerThrottle

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
    monkeypatch.setattr(assemble_device, "current_stream", lambda _device: Stream(found.current))
    return found


class Stream(SimpleNamespace):
    def __init__(self, handle):
        super().__init__(handle=handle, device_index=0)


def hand_out(gpu, batches):
    """The most bytes of batches that were dropped while the GPU might still have been reading them."""
    give, most = ConsumerThrottle(torch.device("cpu"), PENDING), 0
    for _ in range(batches):
        give({"x": torch.empty(BATCH, dtype=torch.uint8)})
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
    handles = [stream.handle for stream in gpu.recorded]
    assert handles == sorted(handles)
    assert set(handles) == {7, 9}


def test_one_that_the_gpu_keeps_up_with_never_waits(gpu):
    for _ in hand_out(gpu, 1000):
        gpu.done = max(gpu.queued - 3, 0)
    assert not gpu.waits


def test_one_that_stops_for_a_while_is_not_held_back_by_what_is_long_past(gpu):
    for number, _ in enumerate(hand_out(gpu, 1000)):
        if number % 12 == 0:
            gpu.done = gpu.queued
    assert not gpu.waits


def test_memory_is_handed_to_the_stream_that_is_current_on_its_device(monkeypatch):
    recorded = []

    class Tensor:
        def __init__(self, device, memory, address):
            self.device, self.is_nested, self.nbytes = torch.device(device), False, 8
            self.is_cuda, self.get_device = self.device.type == "cuda", lambda: self.device.index
            self.data_ptr = lambda: address
            self.untyped_storage = lambda: SimpleNamespace(data_ptr=lambda: memory, nbytes=lambda: 64)

        def record_stream(self, stream):
            recorded.append((str(self.device), stream))

    mine = SimpleNamespace(device_index=0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"current of {device}")
    monkeypatch.setattr(assemble_device, "tensors_of", list)
    batch = [Tensor("cuda:0", 64, 72), Tensor("cuda:1", 128, 128), Tensor("cpu", 256, 256)]
    assert assemble_device.hand_over(batch, mine) == 24
    assert recorded == [("cuda:0", mine), ("cuda:1", "current of cuda:1")]
    recorded.clear()  # of memory that several share, once, wherever in it they lie
    some = [Tensor("cuda:0", *place) for place in ((64, 72), (64, 64), (64, 127), (128, 128), (128, 160))]
    assert assemble_device.hand_over(some, mine) == 40
    assert recorded == [("cuda:0", mine)] * 2


def test_waiting_for_the_gpu_holds_nobody_else_up(gpu, monkeypatch):
    """What is waited for may be for another thread to queue, which hands batches over as well."""
    give, inside, go_on = ConsumerThrottle(torch.device("cpu"), PENDING), threading.Event(), threading.Event()
    batch = {"x": torch.empty(BATCH, dtype=torch.uint8)}

    def wait(_event):
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            assert go_on.wait(20)

    monkeypatch.setattr(Event, "synchronize", wait)
    thread = threading.Thread(target=lambda: [give(batch) for _ in range(40)])
    thread.start()
    assert inside.wait(20)
    assert give(batch) is batch
    go_on.set()
    thread.join(20)
    assert not thread.is_alive()
