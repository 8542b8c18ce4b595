"""The gather from positions is the order of the host and the bytes of the files, whatever is asked for."""

import numpy as np
import pytest
import torch
from torch.nn.functional import pad
from torch.utils.data import ConcatDataset, Subset

from gdsload import BlockShuffle, DataLoader, Field, ShardDataset, ShardWriter
from gdsload.kernels.gather_positions import PositionBatch, PositionGather, rows_in_shards
from gdsload.kernels.position_kernels import MOST_BATCHES
from gdsload.order import FullOrder
from gdsload.system.copies import copies_scattered_runs
from gdsload.system.driver import Driver
from gdsload.testing import assert_resumes_everywhere
from tests.kernels.test_gather_positions import sort_rows
from tests.on_gpu import check_as_on_cpu, epoch_prints

pytestmark = pytest.mark.cuda


def shards_of(device, samples, row_bytes, shards, random):
    """Rows in some pieces of device memory: ends, address of each piece, and all rows on the host."""
    counts = random.multinomial(samples, np.ones(shards) / shards)
    rows = torch.from_numpy(random.integers(0, 256, (samples, row_bytes), np.uint8))
    # Of whole words, as compute-sanitizer takes a shard's last word, which is read whole, for one beyond it.
    parts = [pad(part.reshape(-1), (0, -part.numel() % 16)).to(device) for part in rows.split(counts.tolist())]
    begins = np.array([part.data_ptr() for part in parts], np.int64)
    return np.cumsum(counts), begins, rows, parts


@pytest.mark.parametrize("how", ["vram", "over_pcie", "sorted"])
@pytest.mark.parametrize(
    "row_bytes", [1, 2, 3, 4, 8, 12, 16, 63, 65, 100, 512, 2040, 4096, 4097, 9000, 12_675, 40_960, 150_528]
)
def test_any_row_size(device, row_bytes, how, monkeypatch):
    if how == "sorted":
        sort_rows(monkeypatch, range(2**30))
    random = np.random.default_rng(row_bytes)
    samples = 70_000 if row_bytes <= 512 else 700
    ends, begins, rows, parts = shards_of(device, samples, row_bytes, 5, random)
    order = FullOrder(samples, 77)
    gather = PositionGather(device, ends, over_pcie=how != "vram", recipe=order.permutation.recipe())
    found = rows_in_shards(gather, begins, row_bytes)
    for first, count in [(0, samples), (3, 0), (samples - 1, 1), *random.integers(0, samples // 2, (5, 2)).tolist()]:
        out = torch.full((count, row_bytes), 7, dtype=torch.uint8, device=device)
        gather.rows(found, PositionBatch(first, 0, 1, count), [out])
        ids = torch.from_numpy(np.array(order.lane_ids(0, first, first + count)))
        assert torch.equal(out.cpu(), rows[ids])
    del parts


@pytest.mark.parametrize("how", ["vram", "over_pcie", "sorted"])
@pytest.mark.parametrize("batches", [1, 64, 65, MOST_BATCHES, MOST_BATCHES + 1])
def test_any_number_of_batches(device, batches, how, monkeypatch):
    """Also more than a launch takes; each with a gap after it, as a rank of several takes them."""
    if how == "sorted":
        sort_rows(monkeypatch, range(2**30))
    ends, begins, rows, parts = shards_of(device, 3000, 48, 5, np.random.default_rng(batches))
    order = FullOrder(3000, 7)
    gather = PositionGather(device, ends, over_pcie=how != "vram", recipe=order.permutation.recipe())
    outs = [torch.full((9, 48), 7, dtype=torch.uint8, device=device) for _ in range(batches)]
    gather.rows(rows_in_shards(gather, begins, 48), PositionBatch(3, 11, batches, 9), outs)
    ids = torch.from_numpy(np.concatenate([order.lane_ids(0, low, low + 9) for low in range(3, 3 + 11 * batches, 11)]))
    assert torch.equal(torch.cat(outs).cpu(), rows[ids])
    del parts


@pytest.mark.parametrize("samples", [1, 2, 3, 1000, 65_535, 65_536, 65_537, 99_991, 1_000_003])
def test_any_number_of_samples(device, samples):
    """The permutation's twin, on both sides of the limit between its two forms."""
    random = np.random.default_rng(samples)
    values = torch.arange(samples, dtype=torch.int64, device=device)
    order = FullOrder(samples, int(random.integers(2**63)))
    gather = PositionGather(device, np.array([samples]), over_pcie=False, recipe=order.permutation.recipe())
    out = torch.empty_like(values)
    gather.rows(rows_in_shards(gather, np.array([values.data_ptr()]), 8), PositionBatch(0, 0, 1, samples), [out])
    assert np.array_equal(out.cpu().numpy(), order.lane_ids(0, 0, samples))


def test_a_selection_and_empty_shards(device):
    values = torch.arange(1000, dtype=torch.int64, device=device)
    selection = np.random.default_rng(1).integers(0, 1000, 400)
    gather = PositionGather(device, np.array([0, 300, 300, 1000, 1000]), over_pcie=False, selection=selection)
    begins = values.data_ptr() + 8 * np.array([0, 0, 300, 300, 1000])
    out = torch.empty(400, dtype=torch.int64, device=device)
    gather.rows(rows_in_shards(gather, begins, 8), PositionBatch(0, 0, 1, 400), [out])
    assert np.array_equal(out.cpu().numpy(), selection)


@pytest.mark.parametrize("selected", [False, True])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(("batches", "size", "stride"), [(1, 1, 0), (7, 300, 900), (64, 33, 33), (3, 5000, 7000)])
def test_rows_that_lie_far_apart_are_fetched_in_their_order_and_go_where_they_belong(
    device, monkeypatch, batches, size, stride, given, selected
):
    """Fields of several widths share what was sorted once."""
    sort_rows(monkeypatch, range(2048))
    random, samples = np.random.default_rng(batches), 30_000
    ends, begins, rows, parts = shards_of(device, samples, 37, 9, random)
    others = torch.from_numpy(random.integers(0, 2**60, samples)).to(device)
    numbers = np.concatenate([[0], ends[:-1]]) * 8 + others.data_ptr()
    order = FullOrder(samples, 5)
    selection = random.integers(0, samples, samples) if selected else None
    gather = PositionGather(
        device, ends, over_pcie=True, recipe=None if given else order.permutation.recipe(), selection=selection
    )
    ids = order.lane_ids(0, 0, samples)
    first = 17
    expected = np.stack([ids[first + stride * number :][:size] for number in range(batches)])
    if given:
        positions = PositionBatch(0, size, batches, size, torch.from_numpy(expected.ravel()).to(device))
    else:
        positions = PositionBatch(first, stride, batches, size)
    expected = expected if selection is None else selection[expected]
    wide = [torch.zeros((size, 37), dtype=torch.uint8, device=device) for _ in range(batches)]
    narrow = [torch.zeros(size, dtype=torch.int64, device=device) for _ in range(batches)]
    gather.rows(rows_in_shards(gather, begins, 37), positions, wide)
    found = positions.sorted
    gather.rows(rows_in_shards(gather, numbers, 8), positions, narrow)
    assert found is not None
    assert positions.sorted is found
    for number in range(batches):
        assert torch.equal(wide[number].cpu(), rows[expected[number]])
        assert torch.equal(narrow[number].cpu(), others.cpu()[expected[number]])
    del parts


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    """3000 samples with fields of one shape each, in many shards."""
    path = tmp_path_factory.mktemp("plain") / "shards"
    random = np.random.default_rng(3)
    fields = {"x": Field("uint8", (37,)), "y": Field("float32", (4, 8)), "label": Field("int64")}
    with ShardWriter(path, fields, shard_bytes="32KiB") as writer:
        writer.write_batch(
            {
                "x": random.integers(0, 256, (3000, 37), np.uint8),
                "y": random.standard_normal((3000, 4, 8), np.float32),
                "label": np.arange(3000),
            }
        )
    return path


BLOCKS = {"shuffle": BlockShuffle(block=40, window=300, lanes=5)}


@pytest.mark.parametrize("select", ["all", "subset", "concat"])
@pytest.mark.parametrize("shuffle", [False, "full", "block"])
def test_batches_are_those_of_the_cpu(plain, gathered, shuffle, select):
    dataset = ShardDataset(plain)
    if select == "subset":
        dataset = Subset(dataset, np.random.default_rng(5).integers(0, 3000, 1111).tolist())
    elif select == "concat":
        dataset = ConcatDataset([Subset(dataset, range(2999, -1, -1)), ShardDataset(plain)])
    # The last: of the subset's last 277 samples, which are fewer than twice 139, the second rank gets 139 all the same.
    for world, batch_size in ((1, 64), (3, 64), (2, 139)):
        for rank in range(world):
            options = {
                "batch_size": batch_size, "shuffle": shuffle, "seed": 9, "with_index": True, "ranks": (rank, world)
            }  # fmt: skip
            if shuffle == "block":
                options |= BLOCKS | {"with_index": False}
            expected = epoch_prints(dataset, 2, device="cpu", **options)
            gathered.clear()
            assert epoch_prints(dataset, 2, device="cuda", backend="mapped", **options) == expected
            # The first group finds out which shards are needed; then nothing is planned any more. A rank that takes few
            # blocks may never need some of them, and then has none registered that it does not need.
            assert gathered or (shuffle == "block" and world > 1)
            assert shuffle == "block" or sum(len(steps) for steps, _ in gathered) >= len(expected[0]) - 1


@pytest.fixture(scope="session")
def long(tmp_path_factory):
    """300 samples of a field of long rows, and one of short ones, in several shards."""
    path = tmp_path_factory.mktemp("long") / "shards"
    with ShardWriter(path, {"x": Field("uint8", (3, 151, 151)), "label": Field("int64")}, shard_bytes="5MiB") as writer:
        rows = np.random.default_rng(3).integers(0, 256, (300, 3, 151, 151), np.uint8)
        writer.write_batch({"x": rows, "label": np.arange(300)})
    return path


@pytest.mark.parametrize("fields", [None, ["x"]])
@pytest.mark.parametrize("select", ["all", "subset"])
@pytest.mark.parametrize("shuffle", ["full", "block"])
def test_long_rows_are_copied_and_are_those_of_the_cpu(long, gathered, monkeypatch, shuffle, select, fields):
    """One of the two fields by the copy engine, and the other one by a kernel; or the one alone, without any kernel."""
    queued = []
    real = Driver.copy_many
    monkeypatch.setattr(Driver, "copy_many", lambda *args: (queued.append(real(*args)), queued[-1])[1])
    dataset = ShardDataset(long)
    if select == "subset":
        dataset = Subset(dataset, np.random.default_rng(5).integers(0, 300, 111).tolist())
    options = {"batch_size": 32, "shuffle": shuffle, "seed": 9, "with_index": shuffle == "full", "fields": fields}
    check_as_on_cpu(dataset, {"backend": "mapped"}, 2, **options)
    assert any(queued) == copies_scattered_runs()
    assert all(queued)
    assert gathered


@pytest.mark.parametrize("options", [{"shuffle": "full"}, BLOCKS])
def test_resumes_at_every_step(plain, gathered, options):
    assert_resumes_everywhere(lambda: DataLoader(plain, 200, device="cuda", backend="mapped", **options))
    assert gathered


@pytest.mark.parametrize(
    "where", [{"backend": "mapped"}, {"backend": "auto"}, {"cache": "pagecache"}, {"cache": "vram"}]
)
def test_blocks_while_shards_come_within_reach(numbered, gathered, where):
    """Windows that were being read are left where they are, and nothing comes twice or out of turn."""
    options = {"batch_size": 300, "shuffle": BlockShuffle(block=64, window=900, lanes=4), "seed": 4}
    check_as_on_cpu(numbered, where, 3, **options)
    assert gathered or where != {"backend": "mapped"}  # elsewhere they come when they come
