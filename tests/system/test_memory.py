"""Batch memory comes back when nobody holds it any more, and never before."""

import errno
import io
import itertools
import mmap
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload import BudgetError, ReadError
from gdsload.system.memory import BatchPool, address_of, map_file, populate, unmap
from gdsload.system.memory_views import dense_view, row_view


def tensor_of(lease, count=1000, offset=0):
    """A tensor over leased memory, as batches are made."""
    return torch.frombuffer(memoryview(lease), dtype=torch.uint8, count=count, offset=offset)


KEEPERS = {
    "tensor": tensor_of,
    "second tensor": lambda lease: (tensor_of(lease), tensor_of(lease, 10, 500))[1],
    "view of a tensor": lambda lease: tensor_of(lease)[5:10].view(torch.int8)[1:],
    "row of a tensor": lambda lease: torch.unbind(tensor_of(lease).view(10, 100))[3],
    "transposed tensor": lambda lease: tensor_of(lease).view(10, 100).t()[2],
    "array of a tensor": lambda lease: tensor_of(lease).numpy(),
    "array of an array of a tensor": lambda lease: np.asarray(tensor_of(lease).numpy()[3:].view(np.int8))[1:],
    "tensor of an array of a tensor": lambda lease: torch.from_numpy(tensor_of(lease).numpy()[7:]),
    "storage": lambda lease: tensor_of(lease).untyped_storage(),
    "memoryview": lambda lease: memoryview(lease)[4:6],
    "lease": lambda lease: lease,
    "slice of the lease": lambda lease: lease[5:7],
    "plain array over the lease": lambda lease: lease.view(np.ndarray),
    "asarray of the lease": lambda lease: np.asarray(lease)[3:][1:],
    "lease as another type": lambda lease: np.asarray(lease[:8].view(np.int64)),
    "result of dlpack": lambda lease: torch.from_dlpack(tensor_of(lease)),
    "graph": lambda lease: tensor_of(lease).view(torch.float32).requires_grad_() * 1,
}


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("make", KEEPERS.values(), ids=KEEPERS.keys())
def test_memory_stays_while_anything_of_it_lives(make, pinned, monkeypatch):
    real = torch.empty
    # Nothing is really pinned.
    monkeypatch.setattr(torch, "empty", lambda *given, **more: real(*given, **more | {"pin_memory": False}))
    pool = BatchPool(2**20, pinned=pinned)
    lease = pool.lease(1000)
    where = address_of(lease)
    lease[:] = 7
    kept = make(lease)
    del lease
    if kept is not None and not (isinstance(kept, torch.Tensor) and kept.grad_fn is not None):
        assert where not in {address_of(one) for one in [pool.lease(1000) for _ in range(3)]}
    others = [pool.lease(1000) for _ in range(3)]
    for other in others:
        other[:] = 9
    if isinstance(kept, np.ndarray | torch.Tensor) and kept.dtype in (np.dtype(np.uint8), torch.uint8):
        assert {7} == set(np.asarray(kept).tolist())
    del others, kept
    assert where in {address_of(one) for one in [pool.lease(1000) for _ in range(5)]}


@settings(derandomize=True, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**18)), max_size=40), st.integers(0, 2**20))
def test_held_memory_is_never_leased_twice(steps, keep):
    """Leases are made and dropped at random; those that are held never overlap, and the pool never keeps too much."""
    pool = BatchPool(keep)
    held = {}
    for slot, nbytes in steps:
        held.pop(slot, None)
        lease = pool.lease(nbytes)
        assert lease.nbytes >= nbytes
        assert address_of(lease) % mmap.PAGESIZE == 0
        lease[:1] = slot
        held[slot] = lease
        ranges = sorted((address_of(one), address_of(one) + one.nbytes) for one in held.values())
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))
        assert all(int(one[0]) == number for number, one in held.items())
        assert pool.kept_bytes <= keep
    pool.clear()
    assert pool.kept_bytes == 0
    held.clear()
    assert pool.kept_bytes == 0


def test_batches_of_about_one_size_share_memory():
    pool = BatchPool(2**24)
    sizes = [10_000_000, 10_100_000, 9_990_000, 10_050_000]
    assert len({address_of(pool.lease(size)) for size in sizes}) == 1


def test_memory_of_sizes_that_are_past_makes_room():
    pool = BatchPool(2**20)
    for size in (2**19, 2**18, 2**17):
        leases = [pool.lease(size) for _ in range(2**20 // size)]
        del leases
        assert pool.kept_bytes == 2**20


def test_memory_that_is_kept_for_ever_does_not_slow_the_rest_down():
    """The way back is for those that are dropped again; what a user keeps makes room for them."""
    pool = BatchPool(2**20)
    kept = [pool.lease(2**17) for _ in range(100)]
    seen = {address_of(pool.lease(2**17)) for _ in range(10)}
    assert len(seen) == 1
    del kept
    assert pool.kept_bytes <= 2**20


def test_ctrl_c_is_not_forgotten_when_memory_goes_back(interrupted):
    """An exception of a signal's handler inside __del__, or inside Python code that a weak reference calls, is lost."""
    pool = BatchPool(2**20)

    def use():
        while True:
            tensor = tensor_of(pool.lease(1000))
            del tensor

    for number in range(100):
        interrupted(0.0005 + number * 1e-6, use)


def test_saved_tensor_takes_its_own_bytes_alone():
    lease = BatchPool(0).lease(2**20)
    tensor = tensor_of(lease, 1000, 4096)
    file = io.BytesIO()
    torch.save(tensor, file)
    assert len(file.getvalue()) < 4000
    assert len(pickle.dumps(tensor)) < 4000
    file.seek(0)
    assert torch.equal(tensor, torch.load(file))


def test_many_threads():
    pool = BatchPool(2**20)

    def work(number):
        for _ in range(300):
            tensor = tensor_of(pool.lease(1000)).fill_(number)
            assert bool((tensor == number).all())

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))


def test_memory_after_a_fork(ends_in_a_child):
    """Parent and child have each their own memory, whatever either leases, writes and gives back."""
    pool = BatchPool(2**20)
    held = pool.lease(1000)
    held[:] = 1
    spare = pool.lease(1000)
    del spare
    assert pool.kept_bytes

    def child():
        mine = pool.lease(1000)
        mine[:] = 2
        held[:] = 3
        assert (mine[:1000] == 2).all()

    assert ends_in_a_child(child)
    other = pool.lease(1000)
    assert {1} == set(held.tolist())
    assert 2 not in other


def test_what_cannot_be_pinned(monkeypatch):
    def refuse(*_given, pin_memory, **_more):
        raise RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA")

    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(BudgetError, match=r"of 64 KiB: CUDA error: out of memory\. Lower `batch_size"):
        BatchPool(2**20, pinned=True).lease(10)


def test_what_there_is_no_memory_for_is_an_error_and_not_counted():
    pool = BatchPool(2**30)
    with pytest.raises(BudgetError, match=r"no memory for a batch.* of 1024 TiB.*Lower `batch_size"):
        pool.lease(2**50)
    pool.lease(2**20)
    assert pool.kept_bytes == 2**20


# --- mapped files and addresses ---


@pytest.fixture
def mapped(tmp_path):
    (tmp_path / "f").write_bytes(bytes(range(256)) * 64)
    with open(tmp_path / "f", "rb") as file:
        address = map_file(file.fileno(), 16_384, "f")
    yield address, tmp_path / "f"
    unmap(address, 16_384)


def test_mapping_outlives_its_descriptor(mapped):
    address, _ = mapped
    assert populate(address + 5, 16_000) == 0
    assert dense_view(1, 256, address, 2).tolist() == [list(range(256))] * 2
    assert row_view(1, 4, address + 3, address + 5).tolist() == [[3, 4, 5, 6], [4, 5, 6, 7], [5, 6, 7, 8]]
    assert dense_view(2, 4, address + 2, 2).tolist() == [[0x0302, 0x0504], [0x0706, 0x0908]]
    assert row_view(8, 16, address, address).tolist() == [[0x0706050403020100, 0x0F0E0D0C0B0A0908]]


def test_a_page_behind_the_end_is_noticed_before_it_is_touched(mapped):
    address, path = mapped
    os.truncate(path, 4096)
    assert populate(address, 16_384) == errno.EFAULT
    assert populate(address + 4096, 1) == errno.EFAULT
    assert populate(address, 4096) == 0


def test_what_cannot_be_mapped(tmp_path):
    there, back = os.pipe()
    with pytest.raises(ReadError, match="pipe: the file cannot be mapped: .* Pass `mmap=False`"):
        map_file(there, 4096, "pipe")
    os.close(there)
    os.close(back)
