"""The types of the public interface, as a user's type checker sees them. Checked, never run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, assert_type

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import ConcatDataset, Subset

import gdsload
from gdsload.testing import (
    BackendTests,
    Fault,
    FaultyBackend,
    RecordingBackend,
    SlowBackend,
    assert_resumes_everywhere,
    fingerprint,
)
from gdsload.transforms import Cast, RandomFlip

# Datasets.
dataset = gdsload.ShardDataset("shards/")
gdsload.ShardDataset(Path("shards"), mmap=False)
assert_type(len(dataset), int)
assert_type(dataset[0], dict[str, Any])
assert_type(dataset.__getitems__([1, 2]), list[dict[str, Any]])
assert_type(dataset.schema, gdsload.Schema)
assert_type(dataset.schema["x"], gdsload.Field)
assert_type(dataset.shards, tuple[gdsload.ShardInfo, ...])
assert_type(dataset.shards[0].samples, int)
assert_type(dataset.counts, NDArray[np.int64])
assert_type(dataset.digest, str)
assert_type(dataset.num_bytes, int)
assert_type(dataset.lengths("tokens"), torch.Tensor)
assert_type(dataset.read_batch(torch.arange(3), fields=["x"]), dict[str, Any])
assert_type(dataset.select(np.arange(3)), Subset[dict[str, Any]])
assert_type(dataset.filter(lambda batch: batch["x"] > 3, fields=["x"]), Subset[dict[str, Any]])

# Loaders.
loader = gdsload.DataLoader(dataset, 32, True, seed=1, drop_last=True, device="cuda")
gdsload.DataLoader("shards/", batch_size=32, shuffle="full", device=0)
gdsload.DataLoader(
    Path("shards"), shuffle=gdsload.BlockShuffle(block=100, window=1000, lanes=4), device=torch.device("cpu")
)
gdsload.DataLoader(Subset(dataset, [1, 2, 3]), fields=["x"], with_index=True, ragged=gdsload.Padded({"x": -1}))
gdsload.DataLoader(
    ConcatDataset([dataset, dataset]), ranks=(0, 2), memory=gdsload.Memory(prefetch="256MiB", arena=2**30)
)
gdsload.DataLoader(
    dataset,
    seed=None,
    tail="pad",
    with_real=True,
    ranks=init_device_mesh("cpu", (1,)),
    verify=gdsload.Verify("off"),
)
assert_type(loader.seed, int | None)
assert_type(loader.real_samples, int | None)
assert_type(loader.remainder, int)
gdsload.DataLoader(dataset, ranks=torch.distributed.group.WORLD).load_state_dict({}, change_batch_size=True)
gdsload.DataLoader(dataset, transform=lambda batch: batch["x"], mmap=None, num_workers=4, pin_memory=True)
gdsload.DataLoader(dataset, device_transform=[Cast("x", torch.float32), torch.nn.Identity(), lambda batch: batch["x"]])
gdsload.DataLoader(dataset, device_transform=RandomFlip("x"), reuse_buffers=True)
gdsload.DataLoader(dataset, 32, sampler=torch.randperm(100), drop_last=True)
gdsload.DataLoader(dataset, 32, sampler=lambda epoch: torch.full((100,), epoch), ranks=(0, 2))
gdsload.DataLoader(dataset, batch_sampler=[[1, 2], [3]])
windows = gdsload.Windows(dataset, 16, 4, within="episode")
gdsload.DataLoader(windows, 32, True)
gdsload.Windows("shards/", 4, step=5)
gdsload.Windows("shards/", offsets={"image": [-1, 0], "action": range(16), "state": np.arange(3), "x": torch.arange(3)})
assert_type(windows.offsets["x"], range | tuple[int, ...])
budget = gdsload.TokenBudget(dataset, "tokens", 4096, padded=True, window=1000, shuffle="block", seed=1)
gdsload.DataLoader(dataset, batch_sampler=budget, ranks=(0, 2))
assert_type(len(budget), int)
assert_type(next(iter(gdsload.LengthBuckets("shards/", "tokens", batch_size=32))), NDArray[np.int64])
mix = gdsload.Mix({"a": "shards/", "b": dataset}, {"a": 0.7, "b": 1}, samples="all_exhausted")
gdsload.DataLoader(gdsload.Mix([dataset, dataset], [1, 2], samples=100), 32, True)
assert_type(mix.locate(torch.arange(3)), tuple[torch.Tensor, torch.Tensor])
assert_type(mix.names, tuple[str, ...])
gdsload.DataLoader(dataset, backend=gdsload.Auto(threads=4))
gdsload.DataLoader(dataset, workers=4)  # type: ignore[call-arg]
gdsload.DataLoader(dataset, device_transform=3)  # type: ignore[arg-type]
gdsload.DataLoader(dataset, ragged="varlen")
packed = gdsload.Varlen(torch.arange(3), torch.tensor([0, 3], dtype=torch.int32), 3)
assert_type(packed.position_ids(), torch.Tensor)
gdsload.DataLoader(dataset, ragged="dense")  # type: ignore[arg-type]
gdsload.DataLoader(dataset, batch_size="32")  # type: ignore[arg-type]
gdsload.DataLoader(dataset, collate_fn=len)
gdsload.DataLoader(dataset, collate_fn=5)  # type: ignore[arg-type]

assert_type(len(loader), int)
assert_type(iter(loader), Iterator[Any])
assert_type(loader.epoch, int)
assert_type(loader.state_dict(), dict[str, Any])
assert_type(loader.stats.starved_share, float | None)
assert_type(loader.epoch_stats.as_dict(), dict[str, float])
assert_type(loader.diagnose(), gdsload.Diagnosis)
assert_type(loader.stats.host_wait_share, float)
assert_type(loader.stats.samples, int)
assert_type(loader.stats.reads_ahead, int)
assert_type(loader.backend.bytes_by_path, dict[str, int])
assert_type(loader.backend.reason, str)
assert_type(loader.backend.answer, str)
assert_type(loader.order_options.reason, str)
loader.set_epoch(3)
loader.load_state_dict(loader.state_dict())
with loader as same:
    assert_type(same, gdsload.DataLoader)
loader.close()

# Writing.
with gdsload.ShardWriter(
    "out/", {"x": gdsload.Field("float32", (3,)), "t": "str"}, shard_bytes="1GiB", overwrite=True
) as writer:
    writer.write({"x": torch.zeros(3), "t": "text"})
    writer.write_batch({"x": np.zeros((2, 3), np.float32), "t": ["a", "b"]})
    assert_type(writer.samples, int)
    assert_type(writer.schema, gdsload.Schema | None)
gdsload.ShardWriter(Path("out"), gdsload.Schema({"x": gdsload.Field(torch.bfloat16, (None, 4))}))

# Errors.
try:
    dataset.verify(progress=lambda done, total: None)
except gdsload.ChecksumError as error:
    assert_type(error.problems, tuple[gdsload.Problem, ...])
    assert_type(error.problems[0].samples, tuple[int, int] | None)
except gdsload.ReadError as error:
    assert_type(error.file, str | None)
    assert_type(error.remedy, str | None)
    os_error: OSError = error

# Testing.
assert_type(fingerprint({"x": torch.zeros(3)}), str)
assert_resumes_everywhere(lambda: gdsload.DataLoader("shards/"))


class TestMine(BackendTests):
    mapped = True

    def read_memory(self, address: int, nbytes: int) -> bytes:
        return bytes(nbytes)


def wrapped(backend: RecordingBackend) -> FaultyBackend:
    return FaultyBackend(
        SlowBackend(backend, 0.1), Fault(lambda: gdsload.ReadError("bad"), files=[1], when="completion")
    )


# Shards made of shards.
assert_type(gdsload.merge(["a", Path("b")], "out", workers=2, shard_bytes="1GiB"), gdsload.ConvertReport)
assert_type(gdsload.split("a", ["b", "c"], [0.5], seed=1), list[gdsload.ConvertReport])
assert_type(gdsload.reshard("a", "b", shard_bytes=2**20, overwrite=True), gdsload.ConvertReport)
gdsload.merge(["a"], "out", worker=2)  # type: ignore[call-arg]
assert_type(dataset.read_batch([1]), dict[str, Any])

gdsload.convert("a", "out", size=224, keep_encoded=False, shuffle_seed=1, progress=lambda *_: None)
gdsload.convert({"x": np.zeros(3)}, Path("out"), fields=["x"], source_options={"each": "file"}, overwrite=True)
gdsload.convert("a", "out", shufle_seed=1)  # type: ignore[call-arg]
gdsload.convert("a", "out", size="large")  # type: ignore[arg-type]
gdsload.convert([{"x": 1}], "out", on_error="ignore")  # type: ignore[arg-type]
