"""Packed fields on a GPU: batches are the host's, by every way that bytes travel, and handed over as one memory."""

import numpy as np
import pytest
import torch

from gdsload import BlockShuffle, DataLoader, Field, Memory, ShardDataset, ShardWriter
from gdsload.engine.gpu.device_queue import hand_over
from tests.on_gpu import check_as_on_cpu

pytestmark = pytest.mark.cuda

ORDERS = [
    {"shuffle": False},
    {"shuffle": "full"},
    {"shuffle": BlockShuffle(block=64, window=256, lanes=3)},
]
SCALARS = [f"s{number:02}" for number in range(40)]
FIELDS = {
    **dict.fromkeys(SCALARS, Field("int32")),
    "wide": Field("uint8", (300,)),
    "flag": Field("bool"),
    "half": Field("bfloat16", (2,)),
    "fp8": Field("float8_e4m3fn", (3,)),
    "time": Field("int64"),
}


@pytest.fixture(scope="session")
def packed(tmp_path_factory):
    """3000 samples in several shards."""
    path, random, count = tmp_path_factory.mktemp("packed") / "packed", np.random.default_rng(1), 3000
    batch = {}
    for name, field in FIELDS.items():
        most = 2 if field.dtype.name == "bool" else 256
        raw = torch.from_numpy(random.integers(0, most, (count, field.row_bytes), np.uint8))
        batch[name] = raw.view(getattr(torch, field.dtype.name)).reshape(count, *field.row_shape)
    with ShardWriter(path, FIELDS, shard_bytes="300KiB") as writer:
        writer.write_batch(batch)
    dataset = ShardDataset(path)
    assert len(dataset.shards) > 3
    assert list(dataset.stored.columns) == ["gdsload:rows:0", "wide"]
    return path


@pytest.mark.parametrize("cache", ["none", "vram"])
@pytest.mark.parametrize("backend", ["auto", "bounce", "mapped"])
@pytest.mark.parametrize("fields", [None, ["s07", "time", "wide"], SCALARS, ["flag", "fp8"]], ids=str)
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: str(order["shuffle"]))
def test_batches_are_those_of_the_cpu(packed, order, fields, backend, cache):
    options = {"batch_size": 130, "seed": 5, "with_index": True, "fields": fields, **order}
    check_as_on_cpu(packed, {"backend": backend, "cache": cache}, 3, **options)


def test_fields_of_one_memory_are_recorded_once(packed, monkeypatch):
    """Forty calls of the allocator for each batch would take longer than its gather."""
    with DataLoader(packed, 100, device="cuda", fields=SCALARS, backend="bounce") as loader:
        batch = next(iter(loader))
    recorded, real = [], torch.Tensor.record_stream
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: recorded.append(real(self, stream)))
    nbytes = hand_over(batch, torch.cuda.current_stream())
    assert (len(recorded), nbytes) == (1, 100 * 4 * len(SCALARS))


def test_memory_of_a_dropped_batch_is_not_overwritten_before_it_is_read(packed):
    """Kernels that were queued before a batch was dropped still read it, by any of its fields."""
    options = {"batch_size": 100, "fields": [*SCALARS, "time"], "memory": Memory(prefetch="1MiB")}
    with DataLoader(packed, device="cpu", **options) as loader:
        expected = [batch["s39"].sum() + batch["time"].sum() for batch in loader]
    with DataLoader(packed, device="cuda", backend="bounce", **options) as loader:
        found = []
        for batch in loader:
            last, times = batch["s39"], batch["time"]
            del batch
            torch.cuda._sleep(2_000_000)
            found.append(last.sum() + times.sum())
            del last, times
    assert torch.stack(found).cpu().tolist() == torch.stack(expected).tolist()
