"""Registering shards with CUDA, of which a stand-in does what takes long or fails."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gdsload.backends import mapped
from gdsload.backends.mapped import MappedBackend
from gdsload.errors import BackendUnavailableError, BudgetError
from tests.backends.extents import extents_of, files_in


class Cuda:
    """What is registered; `hook` is called with each address before it is, but not with those that are refused."""

    def __init__(self):
        self.registered, self.refused, self.hook = set(), (), lambda address: None

    def register(self, _device, address, _nbytes, *, read_only):
        assert read_only
        assert address not in self.registered
        if address in self.refused:
            return "no"
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


@settings(derandomize=True, deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sets(st.integers(0, 3), min_size=1, max_size=3), st.sets(st.integers(0, 3), max_size=1), st.booleans()
        ),
        max_size=8,
    )
)
def test_registrations_stay_and_within_their_budget(folder, cuda, calls):
    """Shards that are registered for reads or ahead of them; CUDA may refuse some."""
    files = files_in(folder, mapped=True)
    files.ensure_open(np.arange(4))
    budget = files.length(3)  # or for all others
    backend, there = MappedBackend(files, torch.device("cpu"), register_bytes=budget), set()

    def total(chosen):
        return sum(map(files.length, chosen))

    for wanted, unwilling, ahead in calls:
        before, cuda.refused = there, files.base[list(unwilling)]
        chosen = {min(wanted)} if ahead else wanted
        fits, refused = total(before | chosen) <= budget, unwilling & chosen - before
        try:
            trouble = backend.try_register(min(chosen)) if ahead else ""
            if not ahead:
                backend.read(extents_of([(file, 0, 64) for file in chosen])).release()
        except (BudgetError, BackendUnavailableError) as error:
            trouble = str(error)
        assert (not trouble) == (fits and not refused)
        there = set(np.flatnonzero(backend.registered).tolist())
        assert before <= there <= before | chosen - refused
        assert trouble or chosen <= there
        assert cuda.registered == set(files.base[list(there)].tolist())
        assert backend.registered_bytes == total(there) <= budget
    backend.close()
    assert not cuda.registered
