"""Registering shards with CUDA, of which a stand-in does what takes long or fails."""

import threading

import numpy as np
import pytest
import torch

from gdsload.backends import mapped
from gdsload.backends.mapped import MappedBackend
from tests.backends.extents import extents_of, files_in


class Cuda:
    """What is registered; `hook` is called with each address before it is."""

    def __init__(self):
        self.registered, self.hook = set(), lambda address: None

    def register(self, _device, address, _nbytes, *, read_only):
        assert read_only
        self.registered.add(address)
        self.hook(address)
        return ""

    def unregister(self, _device, address):
        self.registered.remove(address)
        return ""


@pytest.fixture
def cuda(monkeypatch):
    found = Cuda()
    monkeypatch.setattr(mapped, "register_host", found.register)
    monkeypatch.setattr(mapped, "unregister_host", found.unregister)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return found


@pytest.fixture
def backend(folder, cuda):
    files = files_in(folder, mapped=True)
    files.ensure_open(np.arange(4))
    found = MappedBackend(files, torch.device("cpu"), register_bytes=2**40)
    yield found
    found.close()
    assert not cuda.registered


def read(backend, file):
    backend.read(extents_of([(file, 0, 64)])).release()


def test_reads_do_not_wait_while_another_shard_is_registered(backend, cuda):
    begun, go_on, found = threading.Event(), threading.Event(), []
    assert backend.try_register(0) == ""

    def hook(_address):
        begun.set()
        assert go_on.wait(20)

    cuda.hook = hook
    registering = threading.Thread(target=lambda: found.append(backend.try_register(1)))
    registering.start()
    assert begun.wait(20)
    reading = threading.Thread(target=read, args=(backend, 0))
    reading.start()
    reading.join(5)
    waited = reading.is_alive()
    go_on.set()
    registering.join(20)
    reading.join(20)
    assert not waited
    assert (found, backend.registered.tolist()) == ([""], [True, True, False, False])


@pytest.mark.parametrize("how", [read, MappedBackend.try_register])
def test_what_ctrl_c_interrupts_is_not_registered(backend, cuda, how):
    def hook(_address):
        raise KeyboardInterrupt

    cuda.hook = hook
    with pytest.raises(KeyboardInterrupt):
        how(backend, 0)
    assert not cuda.registered
    cuda.hook = lambda address: None
    how(backend, 0)
    assert (len(cuda.registered), backend.registered.tolist()) == (1, [True, False, False, False])


def test_what_is_registered_while_the_backend_is_closed_does_not_stay(backend, cuda):
    cuda.hook = lambda address: backend.give_back()
    assert backend.try_register(0) == "the loader was closed"
    assert (cuda.registered, backend.registered_bytes) == (set(), 0)
