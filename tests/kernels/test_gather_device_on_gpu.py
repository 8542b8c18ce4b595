"""The device's gather against numpy, from device memory and from registered pages, at every row size and alignment."""

import ctypes
import mmap
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch

from gdsload.kernels.gather_device import DeviceGather
from gdsload.kernels.launch import can_launch
from gdsload.system.driver import BATCH_CALLS, driver
from gdsload.system.streams import DeviceBytes, allocate, free, register_host, unregister_host

pytestmark = pytest.mark.cuda
ROOM = 1 << 22


@pytest.fixture(scope="module")
def pages():
    """Registered host memory: a view of it, and its address."""
    memory = mmap.mmap(-1, ROOM)
    array = np.frombuffer(memory, np.uint8)
    array[:] = np.random.default_rng(0).integers(0, 256, ROOM, dtype=np.uint8)
    address = array.ctypes.data
    assert register_host(torch.device("cuda", 0), address, ROOM) == ""
    yield array, address
    assert unregister_host(torch.device("cuda", 0), address) == ""


@pytest.fixture(params=["host", "device"])
def source(request, pages):
    """Bytes, their address, and a function that says which addresses are the host's."""
    array, address = pages
    if request.param == "host":
        return array, address, lambda found: np.ones(len(found), bool)
    tensor = torch.from_numpy(array.copy()).cuda()
    request.node.kept = tensor
    return array, tensor.data_ptr(), lambda found: np.zeros(len(found), bool)


@pytest.fixture(params=["kernel", "torch"])
def gather(request, source):
    if request.param == "kernel":
        pytest.importorskip("cupy")
    return DeviceGather(torch.device("cuda", 0), source[2], kernel=request.param == "kernel")


def cut(array, offsets, nbytes):
    """Pieces of an array, one after the other."""
    pairs = zip(offsets.tolist(), nbytes.tolist(), strict=True)
    return np.concatenate([array[:0], *(array[begin : begin + length] for begin, length in pairs)])


def rows_of(array, offsets, row_bytes):
    return array[offsets[:, None] + np.arange(row_bytes)].reshape(-1)


def random_rows(random, count, row_bytes, step):
    return random.integers(0, (ROOM - row_bytes) // step + 1, count) * step


@pytest.mark.parametrize(
    "row_bytes", [1, 2, 3, 4, 6, 8, 12, 16, 31, 48, 63, 65, 512, 1000, 4096, 4098, 12_675, 150_528]
)
def test_rows(gather, source, row_bytes):
    array, address, _ = source
    random = np.random.default_rng(row_bytes)
    for step in (1, 2, 4, 8, 16, 512):
        for count in (1, 2, 7, 300 if row_bytes > 5000 else 3000):
            offsets = random_rows(random, count, row_bytes, step)
            out = torch.full((count * row_bytes,), 99, dtype=torch.uint8, device="cuda")
            gather.rows(address + offsets, row_bytes, out)
            expected = rows_of(array, offsets, row_bytes)
            assert np.array_equal(out.cpu().numpy(), expected), (step, count)


def test_rows_into_tensors_at_any_alignment(gather, source):
    array, address, _ = source
    offsets = np.arange(200) * 24
    for shift in range(17):
        room = torch.full((200 * 24 + 40,), 99, dtype=torch.uint8, device="cuda")
        gather.rows(address + offsets[::-1], 24, room[shift : shift + 4800])
        expected = rows_of(array, offsets[::-1], 24)
        assert np.array_equal(room[shift : shift + 4800].cpu().numpy(), expected)
        assert (room[:shift].cpu() == 99).all()
        assert (room[shift + 4800 :].cpu() == 99).all()


@pytest.mark.parametrize("row_bytes", [24, 4096])
def test_rows_into_several_tensors(gather, source, row_bytes):
    array, address, _ = source
    random, sizes = np.random.default_rng(9), [5, 0, 300, 1, 64, *[2] * 130]  # more than one launch fills
    for offsets in (random_rows(random, sum(sizes), row_bytes, 8), np.arange(sum(sizes)) * row_bytes):
        outs = [torch.full((size * row_bytes,), 99, dtype=torch.uint8, device="cuda") for size in sizes]
        gather.batches(address + offsets, row_bytes, outs, sizes)
        expected = rows_of(array, offsets, row_bytes)
        assert np.array_equal(torch.cat(outs).cpu().numpy(), expected)


@pytest.mark.parametrize("newest", [True, False, None])
def test_long_rows_that_lie_scattered(source, newest, monkeypatch):
    """Over the link they are copied, all by one call, in whichever form the driver has it; without one, gathered."""
    calls, (array, address, on_host) = driver(), source
    forms = [name for name in BATCH_CALLS if hasattr(ctypes.CDLL("libcuda.so.1"), name)]
    form = None if newest is None or not forms else forms[0 if newest else -1]
    monkeypatch.setattr(calls, "_many", form)
    queued = []
    real = type(calls).copy_many
    monkeypatch.setattr(type(calls), "copy_many", lambda *args: (queued.append(real(*args)), queued[-1])[1])
    gather = DeviceGather(torch.device("cuda", 0), on_host, kernel=None if can_launch() else False)
    random, row_bytes = np.random.default_rng(4), 70_001
    stream = torch.cuda.Stream()
    for sizes in ([1], [2], [0, 3, 40, 1]):
        offsets = random.integers(0, ROOM - row_bytes + 1, sum(sizes))
        with torch.cuda.stream(stream):
            outs = [torch.full((size, row_bytes), 99, dtype=torch.uint8, device="cuda") for size in sizes]
            gather.batches(address + offsets, row_bytes, outs, sizes)
        stream.synchronize()
        expected = array[offsets[:, None] + np.arange(row_bytes)]
        assert np.array_equal(torch.cat(outs).cpu().numpy(), expected)
    over_link = on_host(offsets).all()
    assert queued == ([True, True] if over_link and form else [])  # a single row is copied by itself


@pytest.mark.parametrize("longest", [4_000, 8_000, 40_550])
def test_very_many_short_runs_by_several_threads(pages, longest):
    """As of two loaders, each on its stream. By one call the driver does not end so many; with longer calls it crashed."""
    array, address = pages
    random, count, device = np.random.default_rng(longest), 6000, torch.device("cuda", 0)
    nbytes = random.integers(longest // 8, longest + 1, count)
    offsets, ends = random.integers(0, ROOM - longest + 1, count), np.cumsum(nbytes)
    expected = torch.from_numpy(cut(array, offsets, nbytes))

    def copies(_number):
        gather, stream = DeviceGather(device, lambda found: np.ones(len(found), bool)), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(30):
                out = torch.empty(int(ends[-1]), dtype=torch.uint8, device=device)
                gather.copies(address + offsets, nbytes, out.data_ptr() + ends - nbytes)
            stream.synchronize()
            return out.cpu()

    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(copies, range(3)):
            assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("row_bytes", "longest"),
    [(1, 40), (1, 20_000), (2, 3), (4, 300), (4, 40_000), (8, 0), (12, 200), (16, 200), (24, 5_000), (48, 200)],
)
@pytest.mark.parametrize("neighbours", [False, True])
def test_pieces_of_several_batches(gather, source, row_bytes, longest, neighbours):
    """Into tensors of their own, some of them empty, and nothing beside them."""
    array, address, _ = source
    random = np.random.default_rng(longest)
    for sizes in ([0, 3, 1, 40], [1], [7, 7, 0], [0, 0]):
        lengths = random.integers(0, longest + 1, sum(sizes)) * (random.random(sum(sizes)) < 0.8)
        nbytes = lengths * row_bytes
        if neighbours:
            offsets = np.cumsum(nbytes) - nbytes
        else:
            offsets = random.integers(0, (ROOM - longest * row_bytes) // row_bytes, sum(sizes)) * row_bytes
        edges = np.cumsum([0, *sizes])
        held = [
            torch.full((int(nbytes[low:high].sum()) + 32,), 99, dtype=torch.uint8, device="cuda")
            for low, high in pairwise(edges)
        ]
        gather.pieces(address + offsets, lengths, row_bytes, [out[16:-16] for out in held], sizes)
        for out, low, high in zip(held, edges[:-1], edges[1:], strict=True):
            edge = np.full(16, 99, np.uint8)
            pieces = cut(array, offsets[low:high], nbytes[low:high])
            assert np.array_equal(out.cpu().numpy(), np.concatenate([edge, pieces, edge]))


def test_pieces_of_threads_that_share_a_stream(gather, source):
    """Bytes that one thread has uploaded stay unchanged until its kernel is queued."""
    array, address, _ = source
    stream = torch.cuda.Stream()

    def work(seed):
        random = np.random.default_rng(seed)
        for _ in range(60):
            lengths = random.integers(0, 400, 300)
            offsets = random.integers(0, ROOM - 400, 300)
            with torch.cuda.stream(stream):
                out = torch.empty(int(lengths.sum()), dtype=torch.uint8, device="cuda")
                gather.pieces(address + offsets, lengths, 1, [out], [300])
                found = out.cpu().numpy()
            assert np.array_equal(found, cut(array, offsets, lengths))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


@pytest.mark.parametrize("kernel", [True, False])
def test_rows_of_host_and_device_at_once(pages, kernel):
    """As when some shards are registered and the others come from the drive."""
    if kernel:
        pytest.importorskip("cupy")
    array, address = pages
    tensor = torch.from_numpy(array.copy()).cuda()
    for row_bytes in (512, 4096):
        offsets = random_rows(np.random.default_rng(3), 600, row_bytes, 64)
        base = np.where(np.arange(600) % 3 == 0, address, tensor.data_ptr())
        gather = DeviceGather(
            torch.device("cuda", 0), lambda found: (found >= address) & (found < address + ROOM), kernel=kernel
        )
        out = torch.empty(600 * row_bytes, dtype=torch.uint8, device="cuda")
        gather.rows(base + offsets, row_bytes, out)
        assert np.array_equal(out.cpu().numpy(), rows_of(array, offsets, row_bytes))


def test_kernels_that_read_over_the_link_are_in_a_domain_of_their_own(source, monkeypatch):
    """The driver takes it as it is asked for, from compute capability 9.0 on."""
    pytest.importorskip("cupy")
    calls, (array, address, on_host) = driver(), source
    seen = []

    def watched(config, *arguments):
        code, found = real(config, *arguments), config._obj
        seen.append((code, [(found.attributes[i].id, *found.attributes[i].value[:2]) for i in range(found.count)]))
        return code

    real = calls._launch
    monkeypatch.setattr(calls, "_launch", watched)
    gather = DeviceGather(torch.device("cuda", 0), on_host, kernel=True)
    offsets = random_rows(np.random.default_rng(1), 500, 4096, 8)
    out = torch.full((500 * 4096,), 99, dtype=torch.uint8, device="cuda")
    gather.rows(address + offsets, 4096, out)
    assert np.array_equal(out.cpu().numpy(), rows_of(array, offsets, 4096))
    gather.pieces(address + offsets, np.ones(500, np.int64), 4096, [out.zero_()], [500])
    assert np.array_equal(out.cpu().numpy(), rows_of(array, offsets, 4096))
    apart = on_host(offsets).all() and torch.cuda.get_device_capability() >= (9, 0)
    assert seen == [(0, [(9, 2, 1)] if apart else [])] * 2


@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "torch"])
def test_from_threads_that_have_called_nothing_of_cuda(pages, devices, kernel):
    """Which have no context yet, whatever torch says is their device."""
    if kernel:
        pytest.importorskip("cupy")
    array, address = pages
    offsets = random_rows(np.random.default_rng(6), 300, 1000, 8)
    for device in [*devices, *devices]:
        gather = DeviceGather(device, lambda found: np.ones(len(found), bool), kernel=kernel)
        out = torch.full((300 * 1000,), 99, dtype=torch.uint8, device=device)
        torch.cuda.synchronize(device)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(gather.rows, address + offsets, 1000, out).result(30)
        torch.cuda.synchronize(device)
        assert np.array_equal(out.cpu().numpy(), rows_of(array, offsets, 1000))


def test_the_context_that_the_user_is_in_comes_back(devices):
    """One that is not torch's, as of a library that makes its own, or a green one."""
    calls = driver()
    library, mine, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    for device in devices:
        torch.zeros(1, device=device)
        assert library.cuCtxCreate_v2(ctypes.byref(mine), 0, device.index) == 0
        try:
            with calls.inside(device.index):
                assert library.cuCtxGetCurrent(ctypes.byref(found)) == 0
                assert found.value == calls._primary[device.index] != mine.value
            assert library.cuCtxGetCurrent(ctypes.byref(found)) == 0
            assert found.value == mine.value
        finally:
            assert library.cuCtxDestroy_v2(mine) == 0


@pytest.fixture
def neighbours():
    """Two allocations of the device that are side by side, each of 2 MiB: the address of the second one."""
    device, size = torch.device("cuda", 0), 2 * 2**20
    made = [allocate(device, size) for _ in range(64)]
    found = sorted(set(made) & {address + size for address in made})
    assert found, "of 64 allocations no two are side by side"
    yield found[0], size
    torch.cuda.synchronize()
    for address in made:
        free(device, address)


@pytest.mark.parametrize("row_bytes", [2**20, 2**16])
def test_rows_in_allocations_that_lie_side_by_side(neighbours, row_bytes):
    """The driver refuses a copy that reaches from one into the other, as arenas in many chunks would ask for."""
    middle, size = neighbours
    array = np.random.default_rng(3).integers(0, 256, 2 * size, np.uint8)
    torch.as_tensor(DeviceBytes(middle - size, size), device="cuda").copy_(torch.from_numpy(array[:size]))
    torch.as_tensor(DeviceBytes(middle, size), device="cuda").copy_(torch.from_numpy(array[size:]))
    gather = DeviceGather(torch.device("cuda", 0), lambda found: np.zeros(len(found), bool))
    rows = 2 * size // row_bytes
    addresses, out = (
        middle - size + np.arange(rows) * row_bytes,
        torch.zeros(2 * size, dtype=torch.uint8, device="cuda"),
    )
    gather.batches(addresses, row_bytes, [out], [rows], np.array([middle - size, middle]))
    assert np.array_equal(out.cpu().numpy(), array)
    with pytest.raises(RuntimeError, match="cuMemcpyAsync"):  # without the list of allocations
        gather.batches(addresses, row_bytes, [out], [rows])
