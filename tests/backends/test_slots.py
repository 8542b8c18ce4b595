"""Slots of a device whose memory is counted: what is leased, kept for later, freed, and how much that is."""

from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from gdsload.backends.gds import slots
from gdsload.errors import BudgetError

MIB = 2**20
CHUNK = 16 * MIB
CPU = torch.device("cpu")


class Device:
    """Memory that is not there, at addresses that never come again; an engine, too, and torch's cache."""

    def __init__(self, nbytes, cached=0):
        self.left, self.cached, self.next, self.emptied = nbytes, cached, 0, 0
        self.held, self.registered, self.room = {}, set(), -1

    def allocate(self, _device, nbytes):
        if nbytes > self.left:
            raise MemoryError
        self.next += 2**40
        self.left, self.held[self.next] = self.left - nbytes, nbytes
        return self.next

    def free(self, _device, address):
        assert address not in self.registered
        self.left += self.held.pop(address)

    def empty_cache(self):
        self.left, self.cached, self.emptied = self.left + self.cached, 0, self.emptied + 1

    def register(self, address, _nbytes):
        if len(self.registered) == self.room:
            raise RuntimeError("GPU_MEMORY_PINNING_FAILED")
        self.registered.add(address)

    def deregister(self, address):
        self.registered.remove(address)


@pytest.fixture
def put_in(monkeypatch):

    def made(nbytes=1 << 50, cached=0, device=None):
        device = device or Device(nbytes, cached)
        monkeypatch.setattr(slots, "allocate", device.allocate)
        monkeypatch.setattr(slots, "free", device.free)
        monkeypatch.setattr(torch.cuda, "empty_cache", device.empty_cache)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (device.left, nbytes))
        return SimpleNamespace(slots=slots.Slots(CPU, device), device=device)

    return made


def lease(made, *nbytes):
    return made.slots.lease(np.array(nbytes))


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 1 << 30), st.integers(1, 5), st.sampled_from([CHUNK, 60 * MIB, 1000 * MIB]))
def test_no_more_is_held_than_twice_what_was_leased_at_once(put_in, seed, at_once, longest):
    """Reads of any lengths: of samples that are long, nearly every one has another."""
    it, rng, leases, most = put_in(), np.random.default_rng(seed), [], 0
    for _ in range(60):
        nbytes = rng.integers(1, longest, int(rng.integers(1, 4)))
        leases.append(found := it.slots.lease(nbytes))
        for base, position, length in zip(found.base.tolist(), found.position.tolist(), nbytes.tolist(), strict=True):
            assert position + length <= it.device.held[base]
        assert found.nbytes <= 2 * (nbytes.sum() + CHUNK * len(nbytes))
        most = max(most, sum(one.nbytes for one in leases))
        assert sum(it.device.held.values()) <= 2 * most
        if len(leases) == at_once:
            leases.pop(int(rng.integers(at_once))).release()


class Leases(RuleBasedStateMachine):
    """Leases that end in any order, on a device with little memory and less room for registrations."""

    def __init__(self, put_in):
        super().__init__()
        self.it, self.held, self.lost = put_in(8 * CHUNK), [], []

    @rule(
        nbytes=st.lists(st.sampled_from([1, CHUNK, CHUNK + 1, 3 * CHUNK]), min_size=1, max_size=4),
        room=st.integers(-1, 5),
    )
    def lease(self, nbytes, room):
        self.it.device.room = room
        try:
            self.held.append((lease(self.it, *nbytes), nbytes))
        except BudgetError:
            assert self.it.device.left < 3 * CHUNK

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99), abandoned=st.booleans(), released=st.booleans())
    def end(self, which, abandoned, released):
        found, _ = self.held.pop(which % len(self.held))
        if abandoned:
            self.it.slots.abandon(found)
            self.lost += found.begins.tolist()
        if released:  # or else dropped
            found.release()

    @invariant()
    def each_byte_has_one_holder_and_is_there(self):
        begins = self.lost + [begin for found, _ in self.held for begin in found.begins.tolist()]
        assert len(set(begins)) == len(begins)
        assert set(begins) <= self.it.device.held.keys()
        for found, nbytes in self.held:
            ranges = sorted(zip((found.base + found.position).tolist(), nbytes, strict=True))
            assert all(low + size <= high for (low, size), (high, _) in pairwise(ranges))
            ends = (found.position + nbytes).tolist()
            assert all(end <= self.it.device.held[base] for base, end in zip(found.base.tolist(), ends, strict=True))

    def teardown(self):
        for _ in range(2):
            self.it.slots.close()
            assert sorted(self.it.device.held) == sorted(self.lost)
            assert not self.it.device.registered - set(self.lost)
            while self.held:
                self.held.pop()[0].release()


def test_leases_share_no_byte_and_all_is_freed_but_what_was_abandoned(put_in):
    run_state_machine_as_test(
        partial(Leases, put_in),
        settings=settings(derandomize=True, deadline=None, max_examples=20, stateful_step_count=30),
    )


def test_the_smallest_chunk_is_reused_that_is_at_most_twice_as_large(put_in):
    it = put_in()
    sizes = [5 * CHUNK, 4 * CHUNK, 3 * CHUNK]
    leases = [lease(it, size) for size in sizes]
    begins = [one.begins.item() for one in leases]
    for one in leases:
        one.release()
    again = [lease(it, CHUNK + 1) for _ in range(3)]
    assert [one.begins.item() for one in again[:2]] == [begins[2], begins[1]]
    assert again[2].nbytes == 2 * CHUNK  # the third would be more than twice as large
    assert lease(it, 5 * CHUNK).begins.item() == begins[0]


def test_idle_chunks_make_room_for_what_the_device_has_none_for(put_in):
    it = put_in(7 * CHUNK)
    kept, idle = lease(it, 2 * CHUNK), lease(it, 4 * CHUNK)
    idle.release()
    assert lease(it, CHUNK, CHUNK).nbytes == 2 * CHUNK
    assert kept.begins.item() in it.device.held
    assert idle.begins.item() not in it.device.held
    assert it.device.registered == set(it.device.held)
    assert it.device.emptied == 0


def test_what_torch_keeps_of_freed_memory_makes_room_after_idle_chunks(put_in):
    it = put_in(4 * CHUNK, cached=4 * CHUNK)
    idle = lease(it, 4 * CHUNK)
    idle.release()
    kept = lease(it, 8 * CHUNK)
    assert (kept.nbytes, it.device.emptied) == (8 * CHUNK, 1)
    with pytest.raises(BudgetError, match="no memory left for a slot of 16 MiB beside 128 MiB of slots"):
        lease(it, CHUNK)


def test_chunks_are_registered_as_far_as_the_gpu_has_room_and_used_all_the_same(put_in):
    it = put_in()
    it.device.room = 2
    leases = [lease(it, CHUNK) for _ in range(4)]
    assert it.device.registered == set(np.concatenate([one.begins for one in leases[:2]]).tolist())
    del leases
    it.slots.close()
    assert (it.device.held, it.device.registered) == ({}, set())


def test_a_lease_that_finds_no_room_keeps_no_chunk(put_in):
    it = put_in(2 * CHUNK)
    with pytest.raises(BudgetError, match="no memory left"):
        lease(it, CHUNK, CHUNK, CHUNK)
    assert lease(it, CHUNK, CHUNK).nbytes == 2 * CHUNK


def test_chunks_that_cannot_be_deregistered_are_freed_once(put_in):
    class Refusing(Device):
        def deregister(self, address):
            self.registered.remove(address)
            raise RuntimeError

    it = put_in(device=Refusing(1 << 40))
    lease(it, *[CHUNK] * 3).release()
    it.slots.close()
    assert it.device.held == {}
