"""Registering shards with CUDA, of which a stand-in does what takes long or fails."""

import threading
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from gdsload.backends import mapped
from gdsload.backends.mapped import MappedBackend
from gdsload.errors import BackendUnavailableError, BudgetError
from gdsload.testing.conformance import extents as extents_of
from tests.backends.extents import files_in


class Cuda:
    """The addresses that are registered; `hook` is called with each address before it is, but not with those that are refused."""

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


def test_reads_do_not_wait_while_another_shard_is_registered(backend, cuda, in_thread):
    begun, go_on = threading.Event(), threading.Event()
    assert backend.try_register(0) == ""

    def hook(_address):
        begun.set()
        assert go_on.wait(20)

    cuda.hook = hook
    registering = in_thread(backend.try_register, 1)
    assert begun.wait(20)
    try:
        in_thread(read, backend, 0).result(timeout=5)
    finally:
        go_on.set()
    assert registering.result(timeout=20) == ""
    assert backend.registered.tolist() == [True, True, False, False]


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


class Registrations(RuleBasedStateMachine):
    """Shards that are registered for reads or ahead of them, while reads of others end in any order."""

    def __init__(self, folder, cuda):
        super().__init__()
        self.cuda, self.files, self.reads = cuda, files_in(folder, mapped=True), []
        self.files.ensure_open(np.arange(4))
        self.budget = self.files.length(3)  # or for all others
        self.backend = MappedBackend(self.files, torch.device("cpu"), register_bytes=self.budget)

    def total(self, chosen):
        return sum(map(self.files.length, chosen))

    def registered(self):
        return set(np.flatnonzero(self.backend.registered).tolist())

    @rule(chosen=st.sets(st.integers(0, 3), min_size=1, max_size=3), refused=st.sets(st.integers(0, 3), max_size=1))
    def read(self, chosen, refused):
        self.cuda.refused = self.files.base[list(refused)]
        refused, held = refused & chosen - self.registered(), set().union(*(one for one, _ in self.reads))
        try:
            self.reads.append((chosen, self.backend.read(extents_of([(file, 0, 64) for file in chosen]))))
            assert not refused
        except BudgetError:
            assert self.total(chosen | held) > self.budget
        except BackendUnavailableError:
            assert refused

    @rule(file=st.integers(0, 3), refused=st.booleans())
    def register_ahead(self, file, refused):
        self.cuda.refused, before = self.files.base[[file] * refused], self.registered()
        trouble = self.backend.try_register(file)
        fits = self.total(before | {file}) <= self.budget
        assert (not trouble) == (file in before or (fits and not refused))
        assert self.registered() == before | (set() if trouble else {file})

    @precondition(lambda self: self.reads)
    @rule(which=st.integers(0, 99), released=st.booleans())
    def end(self, which, released):
        _, found = self.reads.pop(which % len(self.reads))
        if released:  # or else dropped
            found.release()

    @invariant()
    def what_is_read_is_registered_and_within_the_budget(self):
        there = self.registered()
        assert self.cuda.registered == set(self.files.base[list(there)].tolist())
        assert self.backend.registered_bytes == self.total(there) <= self.budget
        assert all(chosen <= there for chosen, _ in self.reads)

    def teardown(self):
        self.reads.clear()
        for file in range(4):  # no failure has left a user that never ends
            self.read({file}, set())
            assert self.reads.pop()[0] == {file}
        self.backend.close()
        assert not self.cuda.registered


def test_registrations_stay_within_their_budget_and_as_long_as_they_are_read(folder, cuda):
    run_state_machine_as_test(
        partial(Registrations, folder, cuda),
        settings=settings(derandomize=True, deadline=None, max_examples=80, stateful_step_count=12),
    )
