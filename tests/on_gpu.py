"""Datasets for tests on a GPU, what loaders make of them there, devices, and whether cuFile answers here."""

import os
import time

import numpy as np
import pytest
import torch

import gdsload
from gdsload import DataLoader, Field
from gdsload.engine.resident import ResidentGather
from gdsload.system.probe import probe_cufile
from gdsload.testing import fingerprint

FIELDS = {
    "image": Field("float32", (3, 5)),
    "label": Field("int64"),
    "odd": Field("uint8", (7,)),
    "fp8": Field("float8_e4m3fn", (5,)),
    "points": Field("float32", (None, 2)),
    "normals": Field("float32", (None, 2)),
    "codes": Field("uint16", (None,)),
    "text": "str",
}
WAYS = [{"backend": name} for name in ("auto", "bounce", "mapped", "host")] + [{"cache": "vram"}]
"""The ways that bytes travel to a GPU, as options of a loader."""
CYCLES = 20_000_000
"""About 10 ms of a GPU's time, for `torch.cuda._sleep`."""


def epoch_prints(dataset, epochs=1, **options):
    """The fingerprints of the batches of each epoch."""
    with DataLoader(dataset, **options) as loader:
        return [[fingerprint(batch) for batch in loader] for _ in range(epochs)]


def check_as_on_cpu(dataset, way, epochs=1, **options):
    """Check that the batches of each epoch on the GPU are those on the CPU; `way` has options of the GPU's loader."""
    expected = epoch_prints(dataset, epochs, device="cpu", **options)
    assert epoch_prints(dataset, epochs, device="cuda", **way, **options) == expected


def used_late(loader, use, batches=30):
    """The results of `use` for each of the first batches, on a stream that is late; a batch is dropped after it."""
    found = []
    for batch, _ in zip(loader, range(batches), strict=False):
        torch.cuda._sleep(CYCLES)
        found.append(use(batch))
        del batch
    torch.cuda.synchronize()
    return found


def numbered_rows(low, high):
    """Samples of the numbered dataset, on the CPU."""
    return torch.arange(low, high, dtype=torch.int32)[:, None].expand(-1, 1024)


def check_each_once(loader):
    """Check that an epoch has each sample of the numbered dataset once; its batches."""
    batches = list(loader)
    assert all((batch["x"] == batch["x"][:, :1]).all() for batch in batches)
    seen = torch.cat([batch["x"][:, 0] for batch in batches])
    assert torch.equal(seen.sort().values.cpu(), torch.arange(20_000, dtype=torch.int32))
    return batches


def wait_until_kept(loader, shards=None, seconds=20):
    """Wait until the tier in VRAM holds so many shards, or all."""
    wanted, deadline = loader.cache.shards if shards is None else shards, time.monotonic() + seconds
    while loader.cache.tiers["vram"].shards != wanted:
        assert time.monotonic() < deadline, loader.cache
        time.sleep(0.01)


def sample(number):
    random = np.random.default_rng(number)
    points, codes = random.integers(0, 5, 2).tolist()
    return {
        "image": random.standard_normal((3, 5), np.float32),
        "label": torch.tensor(number),
        "odd": random.integers(0, 256, 7, np.uint8),
        "fp8": torch.from_numpy(random.integers(0, 256, 5, np.uint8)).view(torch.float8_e4m3fn),
        "points": random.standard_normal((points, 2), np.float32),
        "normals": random.standard_normal((points, 2), np.float32),
        "codes": random.integers(0, 2**16, codes, np.uint16),
        "text": f"sample {number} {'€' * (number % 4)}",
    }


@pytest.fixture(scope="session")
def varied(tmp_path_factory):
    """300 samples with fields of every kind, in some dozen shards."""
    path = tmp_path_factory.mktemp("varied") / "shards"
    with gdsload.ShardWriter(path, FIELDS, shard_bytes="16KiB") as writer:
        for number in range(300):
            writer.write(sample(number))
    return path


@pytest.fixture(scope="session")
def numbered(tmp_path_factory):
    """20 000 samples of 4 KiB: int32, each its own number in all places."""
    path = tmp_path_factory.mktemp("numbered") / "shards"
    with gdsload.ShardWriter(path, {"x": Field("int32", (1024,))}, shard_bytes="16MiB") as writer:
        for low in range(0, 20_000, 1000):
            numbers = np.arange(low, low + 1000, dtype=np.int32)
            writer.write_batch({"x": np.repeat(numbers[:, None], 1024, axis=1)})
    return path


@pytest.fixture
def gathered(monkeypatch):
    """The steps that were gathered by positions, each group with the samples that the host has said, or None."""
    pytest.importorskip("cupy")
    found, real = [], ResidentGather.gather

    def gather(self, steps, samples=None):
        batches = real(self, steps, samples)
        found.append((steps, samples))
        return batches

    monkeypatch.setattr(ResidentGather, "gather", gather)
    return found


@pytest.fixture
def device():
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture
def devices():
    """The first two GPUs, or the one that there is. Fails if there must be two."""
    count = torch.cuda.device_count()
    if count < 2 and "two" in os.environ.get("GDSLOAD_REQUIRE", "").split(","):
        pytest.fail("GDSLOAD_REQUIRE=two, but there is one GPU", pytrace=False)
    return [torch.device("cuda", index) for index in range(min(count, 2))]


@pytest.fixture
def two_gpus(devices):
    """Skips where there is one GPU only."""
    if len(devices) < 2:
        pytest.skip("one GPU only")


@pytest.fixture
def cufile(tmp_path):
    """Skips where cuFile does not answer, or fails if it must."""
    file = tmp_path.parent / "probed"  # the same for all tests of a process: cuFile is asked once
    file.write_bytes(bytes(2**20))
    found = probe_cufile(str(file))
    if found.status != "ok":
        if "cufile" in os.environ.get("GDSLOAD_REQUIRE", "").split(","):
            pytest.fail(f"GDSLOAD_REQUIRE=cufile, but cuFile does not answer: {found}", pytrace=False)
        pytest.skip(f"cuFile does not answer: {found.reason}")
    return found
