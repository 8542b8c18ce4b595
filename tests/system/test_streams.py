"""Changing torch's streams, with stand-ins for its calls."""

import itertools
import os
import signal
import threading
import time
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from gdsload.system import streams

devices = itertools.count(40, 2)
"""Pairs of devices, for each test its own, and none that there is: streams are remembered for good."""


class Stream(SimpleNamespace):
    """A stream by handle and device; each object is another one."""

    def __init__(self, handle, index):
        super().__init__(cuda_stream=handle, device_index=index, device=torch.device("cuda", index))


@pytest.fixture
def torch_streams(monkeypatch):
    """The streams that are current, by device, and the device that is."""
    one = next(devices)
    found = SimpleNamespace(
        current={one: Stream(0, one), one + 1: Stream(0, one + 1)}, device=one, made=0, changed=set()
    )

    @contextmanager
    def usual(device):
        before, found.device = found.device, device.index
        yield
        found.device = before

    def change(stream):
        found.current[stream.device_index] = stream
        found.changed.add(stream.device_index)

    def current(device):
        found.made += 1
        return found.current[(device if isinstance(device, int) else device.index) or one]

    monkeypatch.setattr(torch.cuda, "device", usual)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: found.device)
    monkeypatch.setattr(torch.cuda, "current_stream", current)
    monkeypatch.setattr(torch.cuda, "set_stream", change)
    monkeypatch.setattr(streams, "_raw_stream", lambda index: found.current[index].cuda_stream)
    return found


def test_what_was_current_is_current_again(torch_streams):
    """The very object: a comparison finds nothing changed."""
    one = torch_streams.device
    before, side = torch_streams.current[one], Stream(5, one)
    torch_streams.current[one] = Stream(0, one)
    streams.current_stream(torch.device("cuda", one))  # so that one of the same handle is known
    torch_streams.current[one] = before
    with streams.on(side):
        assert torch_streams.current[one] is side
    assert torch_streams.current[one] is before
    with pytest.raises(ZeroDivisionError), streams.on(side):
        1 / 0  # noqa: B018
    assert torch_streams.current[one] is before


def test_on_another_device_both_change_and_the_first_one_is_left_alone(torch_streams):
    """To make a stream of it current begins a context on it."""
    one = torch_streams.device
    before, side = dict(torch_streams.current), Stream(5, one + 1)
    with streams.on(side):
        assert (torch_streams.current[one + 1], torch_streams.device) == (side, one + 1)
    assert (torch_streams.current, torch_streams.device) == (before, one)
    assert torch_streams.changed == {one + 1}


def test_an_object_is_made_once_for_each_stream_and_device(torch_streams):
    for _ in range(3):
        for handle in (0, 5):
            for index in torch_streams.current:
                torch_streams.current[index] = Stream(handle, index)
                found = streams.current_stream(torch.device("cuda", index))
                assert (found.cuda_stream, found.device_index) == (handle, index)
    assert torch_streams.made == 4
    assert streams.current_stream(torch.device("cuda")) is torch_streams.current[torch_streams.device]


@pytest.fixture
def cudart(monkeypatch):
    """Has CUDA's runtime be these functions."""
    monkeypatch.setattr(torch.cuda, "device", lambda _device: nullcontext())
    return lambda **calls: monkeypatch.setattr(torch.cuda, "cudart", lambda: SimpleNamespace(**calls))


@pytest.mark.parametrize("ending", [False, True])
def test_cuda_is_also_called_where_no_thread_can_be_started(monkeypatch, cudart, ending):
    """As at the interpreter's end, when what is registered has to go."""
    calls = []
    cudart(cudaHostUnregister=lambda address: calls.append(address) or 0)
    if ending:

        def start(_thread):
            raise RuntimeError("can't create new thread at interpreter shutdown")

        monkeypatch.setattr(threading.Thread, "start", start)
    assert streams.unregister_host(torch.device("cuda", 0), 4096) == ""
    assert calls == [4096]


def test_what_ctrl_c_interrupts_has_been_done(cudart):
    """A thread that is interrupted while memory is registered can remove the registration."""
    calls = []

    def register(address, _nbytes, _flags):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        calls.append(address)
        return 0

    cudart(cudaHostRegister=register)
    with pytest.raises(KeyboardInterrupt):
        streams.register_host(torch.device("cuda", 0), 4096, 1)
    assert calls == [4096]
