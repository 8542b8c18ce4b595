"""Changing torch's streams, with stand-ins for its calls."""

from __future__ import annotations

import itertools
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
    found = SimpleNamespace(current={one: Stream(0, one), one + 1: Stream(0, one + 1)}, device=one, made=0)

    @contextmanager
    def usual(stream):
        before, device, found.device = found.current[stream.device_index], found.device, stream.device_index
        found.current[stream.device_index] = stream
        yield
        found.current[stream.device_index], found.device = before, device

    def current(device):
        found.made += 1
        return found.current[(device if isinstance(device, int) else device.index) or one]

    monkeypatch.setattr(torch.cuda, "stream", usual)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: found.device)
    monkeypatch.setattr(torch.cuda, "current_stream", current)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: found.current.update({stream.device_index: stream}))
    monkeypatch.setattr(streams, "_raw_stream", lambda index: found.current[index].cuda_stream)
    return found


def test_what_was_current_is_current_again(torch_streams):
    """The very object: whoever compares it finds nothing changed."""
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


def test_on_another_device_torch_changes_both(torch_streams):
    one = torch_streams.device
    before, side = dict(torch_streams.current), Stream(5, one + 1)
    with streams.on(side):
        assert (torch_streams.current[one + 1], torch_streams.device) == (side, one + 1)
    assert (torch_streams.current, torch_streams.device) == (before, one)


def test_an_object_is_made_once_for_each_stream_and_device(torch_streams):
    for _ in range(3):
        for handle in (0, 5):
            for index in torch_streams.current:
                torch_streams.current[index] = Stream(handle, index)
                found = streams.current_stream(torch.device("cuda", index))
                assert (found.cuda_stream, found.device_index) == (handle, index)
    assert torch_streams.made == 4
    assert streams.current_stream(torch.device("cuda")) is torch_streams.current[torch_streams.device]


@pytest.mark.parametrize("ending", [False, True])
def test_cuda_is_also_called_where_no_thread_can_be_started(monkeypatch, ending):
    """As at the interpreter's end, when what is registered has to go."""
    calls, runtime = [], SimpleNamespace(cudaHostUnregister=lambda address: calls.append(address) or 0)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "device", lambda _device: nullcontext())
    if ending:

        def start(_thread):
            raise RuntimeError("can't create new thread at interpreter shutdown")

        monkeypatch.setattr(streams.threading.Thread, "start", start)
    assert streams.unregister_host(torch.device("cuda", 0), 4096) == ""
    assert calls == [4096]
