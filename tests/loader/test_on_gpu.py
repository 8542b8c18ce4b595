"""The loader on a GPU gives what it gives on the CPU, whatever the backend."""

import gc

import pytest
import torch

import gdsload
from gdsload import BackendUnavailableError, BudgetError, DataLoader
from gdsload.engine.gpu.plain_tensors import tensors_of
from gdsload.testing import assert_resumes_everywhere
from tests.on_gpu import WAYS, check_as_on_cpu, check_each_once, numbered_rows
from tests.pools import own_threads

pytestmark = pytest.mark.cuda
BACKENDS = ["auto", "bounce", "mapped", "host"]


@pytest.mark.parametrize("backend", [*BACKENDS, "cufile", "kvikio"])
@pytest.mark.parametrize("shuffle", [False, "full", "block"])
def test_batches_are_those_of_the_cpu(varied, backend, shuffle, request):
    if backend in ("cufile", "kvikio"):
        request.getfixturevalue("cufile")
        if backend == "kvikio":
            pytest.importorskip("kvikio")
        backend = gdsload.Gds(compat=True, engine=backend)
    for ragged in ("jagged", "offsets", "padded", "varlen"):
        options = {"batch_size": 17, "shuffle": shuffle, "seed": 5, "ragged": ragged, "with_index": True}
        check_as_on_cpu(varied, {"backend": backend}, **options)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shuffle", [False, "full", "block"])
def test_padded_batches_are_those_of_the_cpu(varied, backend, shuffle):
    """Also in epochs that begin when the GPU reaches all shards, whose samples the host finds."""
    options = {"batch_size": 17, "shuffle": shuffle, "seed": 5, "tail": "pad", "with_real": True, "with_index": True}
    for rank in range(3):
        check_as_on_cpu(varied, {"backend": backend}, 3, ranks=(rank, 3), **options)


@pytest.mark.parametrize("mmap", [True, False])
def test_several_epochs(numbered, mmap):
    """In `auto`, shards become registered on the way, and mixed batches come out right."""
    with DataLoader(numbered, 512, "full", device="cuda", mmap=mmap) as loader:
        for _ in range(4):
            check_each_once(loader)
        moved = loader.backend.bytes_by_path
    assert sum(moved.values()) >= 4 * 20_000 * 4096
    assert set(moved) <= {"mapped", "bounce-direct", "bounce-buffered"}


@pytest.mark.usefixtures("cufile")
@pytest.mark.parametrize("verify", ["off", "all"])
@pytest.mark.parametrize("way", [*WAYS, {"backend": gdsload.Gds(compat=True)}], ids=str)
def test_a_loader_that_is_dropped_in_an_epoch_gives_all_back(numbered, soon, way, verify):
    loader = DataLoader(numbered, 100, "block", device="cuda", verify=verify, **way)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    del loader, iterator
    soon(lambda: gc.collect() >= 0 and not [name for name in own_threads() if name != "gdsload-prepare"])


def test_resumes_at_every_step(varied):
    for shuffle in (False, "full", "block"):
        for backend in ("bounce", "host"):
            options = {"device": "cuda", "backend": backend}
            assert_resumes_everywhere(lambda s=shuffle, o=options: DataLoader(varied, 40, s, **o))


@pytest.mark.parametrize("backend", BACKENDS)
def test_fields_packed_for_attention(varied, backend):
    """All on the GPU, and the longest known without asking it; fields of equal lengths share where samples begin."""
    with DataLoader(varied, 17, "full", device="cuda", backend=backend, ragged="varlen") as loader:
        for batch in loader:
            points = batch["points"]
            assert type(points) is gdsload.Varlen
            assert {points.values.device.type, points.cu_seqlens.device.type} == {"cuda"}
            assert (points.cu_seqlens.dtype, type(points.max_seqlen)) == (torch.int32, int)
            lengths = points.cu_seqlens.diff().tolist()
            assert points.max_seqlen == max(lengths)
            positions = points.position_ids()
            assert (positions.device.type, positions.tolist()) == (
                "cuda",
                [row for rows in lengths for row in range(rows)],
            )
            if backend != "host":
                assert batch["normals"].cu_seqlens is points.cu_seqlens


def test_torchs_attention_takes_them(tmp_path):
    """Each sample by itself, as with its own scaled dot product."""
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("flash attention needs compute capability 8.0")
    lengths = [70, 1, 33, 128, 5]
    with gdsload.ShardWriter(tmp_path / "set", {"x": gdsload.Field("bfloat16", (None, 2, 64))}) as writer:
        writer.write_batch({"x": [torch.randn(rows, 2, 64).bfloat16() for rows in lengths]})
    with DataLoader(tmp_path / "set", 5, device="cuda", ragged="varlen") as loader:
        (batch,) = loader
    x, begins, longest = batch["x"]
    found = varlen.varlen_attn(x, x, x, begins, begins, longest, longest)
    for rows, out in zip(x.split(lengths), found.split(lengths), strict=True):
        one = rows.transpose(0, 1)[None]
        alone = torch.nn.functional.scaled_dot_product_attention(one, one, one)[0].transpose(0, 1)
        torch.testing.assert_close(out, alone, atol=2e-2, rtol=2e-2)


def test_where_tensors_are(varied):
    with DataLoader(varied, 8, device="cuda", with_index=True) as loader:
        batch = next(iter(loader))
    for name, value in batch.items():
        devices = {tensor.device.type for tensor in tensors_of(value)}
        assert devices == (set() if name == "text" else {"cpu"} if name == "index" else {"cuda"})
    assert batch["points"].layout == torch.jagged
    assert torch.equal(
        (batch["points"] + batch["normals"]).values(), batch["points"].values() + batch["normals"].values()
    )


@pytest.mark.parametrize("backend", ["mapped", "host"])
def test_a_batch_outlives_its_loader(numbered, backend):
    loader = DataLoader(numbered, 100, device="cuda", backend=backend)
    batches = [batch for batch, _ in zip(loader, range(50), strict=False)]
    loader.close()
    torch.cuda.synchronize()
    for number, batch in enumerate(batches):
        assert torch.equal(batch["x"].cpu(), numbered_rows(number * 100, number * 100 + 100))


@pytest.mark.parametrize("backend", ["bounce", "host"])
def test_memory_stays_within_the_budget(numbered, backend):
    """Over many epochs, with a consumer that never waits for the GPU."""
    budget = 2 * 2**24 + 2**25
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    options = {"memory": gdsload.Memory(prefetch=2**24, arena=2**25), "backend": backend}
    with DataLoader(numbered, 512, "full", device="cuda", **options) as loader:
        for _ in range(5):
            for batch in loader:
                batch["x"].float().mul_(2)
    # Beside the budget: two groups of batches and their slots, which are always allowed, and the consumer's own.
    assert torch.cuda.max_memory_allocated() - before < budget + 8 * 2**23


def test_status_says_what_was_asked_chosen_and_moved(numbered):
    with DataLoader(numbered, 1000, device="cuda", backend="bounce") as loader:
        assert (loader.backend.chosen, loader.backend.bytes_by_path) == ("bounce", {})
        for _ in loader:
            pass
        status = loader.backend
    assert (status.asked, status.chosen) == ("bounce", "bounce")
    assert sum(status.bytes_by_path.values()) >= 20_000 * 4096
    assert "bounce" in str(status)


@pytest.mark.usefixtures("cufile")
def test_gds_by_name_means_dma(numbered, cufile):
    """Where cuFile answers in its compat mode only, it is refused, unless the caller allows it; and it is named."""
    if cufile.proven:
        pytest.skip("DMA works here")
    with pytest.raises(BackendUnavailableError, match="cufile-posix"):
        DataLoader(numbered, 100, device="cuda", backend="gds")
    with DataLoader(numbered, 1000, device="cuda", backend=gdsload.Gds(compat=True)) as loader:
        for number, batch in enumerate(loader):
            assert torch.equal(batch["x"].cpu(), numbered_rows(number * 1000, number * 1000 + 1000))
        moved = loader.backend.bytes_by_path
    assert set(moved) == {"cufile-posix"}
    assert moved["cufile-posix"] >= 20_000 * 4096


def test_mapped_without_mapping_is_refused(numbered):
    with pytest.raises(BackendUnavailableError, match="not mapped"):
        DataLoader(numbered, 100, device="cuda", backend="mapped", mmap=False)


def test_mapped_beyond_its_budget_is_refused_with_both_numbers(numbered):
    loader = DataLoader(
        numbered, 1000, "full", device="cuda", backend="mapped", memory=gdsload.Memory(registered="20MiB")
    )
    with loader, pytest.raises(BudgetError, match="20 MiB"):
        next(iter(loader))


def test_mapped_in_order_goes_round_within_its_budget(numbered):
    options = {"backend": "mapped", "memory": gdsload.Memory(registered="50MiB", prefetch="1MiB")}
    with DataLoader(numbered, 500, device="cuda", **options) as loader:
        seen = torch.cat([batch["x"][:, 0] for batch in loader])
    assert torch.equal(seen.cpu(), torch.arange(20_000, dtype=torch.int32))


@pytest.mark.parametrize("backend", ["bounce", "host"])
def test_a_full_device_names_the_budget(numbered, backend):
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    # Not by taking all memory, which others on this GPU would miss.
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**26) / total)
    try:
        loader = DataLoader(numbered, 20_000, device="cuda", backend=backend)
        with loader, pytest.raises(BudgetError, match="Memory.prefetch="):
            list(loader)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_closing_in_the_middle_ends_all_threads(numbered, threads):
    for backend in BACKENDS:
        loader = DataLoader(numbered, 100, "full", device="cuda", backend=backend)
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
        loader.close()
        assert threads() == []


def test_device_without_an_index_is_the_current_one(numbered):
    with DataLoader(numbered, 100, device="cuda") as loader:
        assert loader.device == torch.device("cuda", torch.cuda.current_device())
    with DataLoader(numbered, 100) as loader:
        assert loader.device.type == "cuda"
    assert gdsload.DataLoader(numbered, 100, device="cpu").device.type == "cpu"


@pytest.fixture(scope="module", params=[(12, 16), (40, 32)], ids=["16 MiB", "32 MiB"])
def volumes(request, tmp_path_factory):
    """A dataset of large samples, and how many; those of 16 MiB are as large as a slot's chunk."""
    count, mebibytes = request.param
    path = tmp_path_factory.mktemp("volumes") / "shards"
    values = mebibytes * 2**18
    with gdsload.ShardWriter(path, {"x": gdsload.Field("int32", (values,))}, shard_bytes="64MiB") as writer:
        for number in range(count):
            writer.write({"x": torch.full((values,), number, dtype=torch.int32)})
    return path, count


@pytest.mark.usefixtures("cufile")
@pytest.mark.parametrize("backend", ["gds", "bounce"])
@pytest.mark.parametrize("shuffle", [False, "full", "block"])
def test_samples_of_a_chunk_or_more(volumes, backend, shuffle):
    """Their chunks are side by side, and no copy may reach from one into another."""
    path, count = volumes
    way = gdsload.Gds(compat=True) if backend == "gds" else backend
    with DataLoader(path, 4, shuffle, device="cuda", backend=way) as loader:
        for _ in range(2):
            seen = []
            for batch in loader:
                assert (batch["x"] == batch["x"][:, :1]).all()
                seen += batch["x"][:, 0].tolist()
            assert sorted(seen) == list(range(count))
