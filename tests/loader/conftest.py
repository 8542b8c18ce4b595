"""Datasets whose samples are known beforehand, and loaders over them."""

import functools
import gc
import io
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import gdsload
from gdsload import Field
from gdsload.backends.host import HostBackend
from tests.loader.taking import ORDERS, raw_bytes
from tests.pools import own_threads

RICH = {
    "image": Field("float32", (3, 5)),
    "label": Field("int64"),
    "flag": Field("bool", (4,)),
    "u16": Field("uint16", (3,)),
    "bf16": Field("bfloat16", (2, 2)),
    "fp8": Field("float8_e4m3fn", (5,)),
    "points": Field("float32", (None, 2)),
    "normals": Field("float32", (None, 2)),
    "codes": Field("uint16", (None,)),
    "ragged_fp8": Field("float8_e5m2", (None, 3)),
    "text": "str",
    "blob": "bytes",
}


@functools.cache
def rich_sample(number):
    """Sample `number` of the rich dataset: every kind of field, from the number alone."""
    random = np.random.default_rng(number)

    def raw(dtype, *shape):
        made = torch.empty(shape, dtype=dtype)
        made.view(torch.uint8)[...] = torch.from_numpy(
            random.integers(0, 256, made.view(torch.uint8).shape, dtype=np.uint8)
        )
        return made

    points, codes, fp8 = random.integers(0, 5, 3).tolist()
    return {
        "image": torch.full((3, 5), float(number)) + torch.arange(15).view(3, 5) / 16,
        "label": torch.tensor(number),
        "flag": torch.from_numpy(random.integers(0, 2, 4).astype(bool)),
        "u16": raw(torch.uint16, 3),
        "bf16": raw(torch.bfloat16, 2, 2),
        "fp8": raw(torch.float8_e4m3fn, 5),
        "points": raw(torch.float32, points, 2),
        "normals": raw(torch.float32, points, 2),
        "codes": raw(torch.uint16, codes),
        "ragged_fp8": raw(torch.float8_e5m2, fp8, 3),
        "text": f"sample {number}: äöü {'€' * (number % 4)}" if number % 5 else "",
        "blob": random.bytes(number % 7),
    }


def write_rich(path, samples, pack_fields=()):
    with gdsload.ShardWriter(path, RICH, shard_bytes=3000, pack_fields=pack_fields) as writer:
        for number in range(samples):
            writer.write(rich_sample(number))
    return path


def write_plain(path, samples, width=8, shard_bytes="256KiB"):
    """Samples of `width` int32, each its own number in all places."""
    with gdsload.ShardWriter(path, {"x": Field("int32", (width,))}, shard_bytes=shard_bytes) as writer:
        writer.write_batch({"x": np.repeat(np.arange(samples, dtype=np.int32)[:, None], width, axis=1)})
    return path


@pytest.fixture(scope="session")
def rich(tmp_path_factory):
    """143 samples of every kind of field, in shards of different lengths."""
    path = write_rich(tmp_path_factory.mktemp("rich") / "rich", 143)
    assert len(gdsload.ShardDataset(path).shards) > 4
    return path


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    """1000 samples of 32 bytes in 4 shards."""
    path = write_plain(tmp_path_factory.mktemp("plain") / "plain", 1000, shard_bytes=8192)
    assert len(gdsload.ShardDataset(path).shards) == 4
    return path


@pytest.fixture
def numbered_images(tmp_path):
    """30 images of different sizes, numbered."""
    image = pytest.importorskip("PIL.Image")
    with gdsload.ShardWriter(tmp_path / "images", {"image": Field("image"), "label": Field("int64")}) as writer:
        for number in range(30):
            image.fromarray(np.full((9 + number, 40, 3), number, np.uint8)).save(data := io.BytesIO(), "PNG")
            writer.write({"image": data.getvalue(), "label": number})
    return tmp_path / "images"


@pytest.fixture
def own_plain(tmp_path):
    """A dataset like `plain` that a test may damage."""
    return write_plain(tmp_path / "own", 1000, shard_bytes=8192)


@pytest.fixture(scope="session")
def expect_rich():
    """Return whether a batch, with ragged fields as pairs (values, offsets), holds these samples of `rich`, bit by bit."""

    def check(batch, numbers):
        samples = [rich_sample(number) for number in numbers]
        for name, found in batch.items():
            if name == "index":
                continue
            wanted = [sample[name] for sample in samples]
            if isinstance(found, list):
                assert found == wanted
            elif isinstance(found, tuple):
                values, offsets = found
                assert offsets.dtype == torch.int64
                assert offsets.tolist() == np.cumsum([0, *map(len, wanted)]).tolist()
                assert values.shape[1:] == rich_sample(0)[name].shape[1:]
                assert values.dtype == rich_sample(0)[name].dtype
                assert raw_bytes(values) == b"".join(map(raw_bytes, wanted))
            else:
                assert found.shape == (len(samples), *rich_sample(0)[name].shape)
                assert found.dtype == rich_sample(0)[name].dtype
                assert raw_bytes(found) == b"".join(map(raw_bytes, wanted))

    return check


@pytest.fixture(params=[True, False], ids=["mapped", "unmapped"])
def mmap(request):
    return request.param


@pytest.fixture(params=ORDERS, ids=str)
def order(request):
    """Options of a loader: one of each kind of order."""
    return request.param


@pytest.fixture(params=[False, "full", "block"])
def shuffle(request):
    return request.param


@pytest.fixture
def load():
    """Makes loaders on the CPU, and closes them."""
    made = []

    def make(dataset, batch_size=1, shuffle=False, **options):
        made.append(gdsload.DataLoader(dataset, batch_size, shuffle, device="cpu", **options))
        return made[-1]

    yield make
    for loader in made:
        loader.close()
    made.clear()


@pytest.fixture
def wrap(monkeypatch):
    """Puts a backend of ours around the one that loaders use; gives the list of those that were made."""

    def install(around):
        made = []

        def make(files):
            made.append(around(HostBackend(files)))
            return made[-1]

        monkeypatch.setattr("gdsload.backends.registry.HostBackend", make)
        return made

    return install


@pytest.fixture
def small_groups(monkeypatch):
    """A group is a batch, so that there are many."""
    for name in ("_LEAST_GROUP_BYTES", "_MOST_GROUP_BYTES", "_GROUP_BYTES_IN_ORDER"):
        monkeypatch.setattr(f"gdsload.loader.budgets.{name}", 1)


@pytest.fixture
def join():
    """Makes this process one rank of a process group that nobody else is in: by default, the second of three."""

    def make(rank=1, world_size=3):
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())

    yield make
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def workers(monkeypatch):
    """Sets how many threads a loader has."""
    return lambda count: monkeypatch.setattr("os.sched_getaffinity", lambda _: range(max(count, 2)))


@pytest.fixture
def threads():
    """The names of the library's own threads, now."""
    return own_threads


def settled(seconds):
    """The names of the threads that are left when those of closed and dropped loaders have ended."""
    begun = time.monotonic()
    while own_threads() and time.monotonic() < begun + seconds:
        time.sleep(0.001)
        if time.monotonic() > begun + 0.1:  # longer than threads take to end: a loader that nobody has closed
            gc.collect()
    return own_threads()


@pytest.fixture(autouse=True)
def no_threads_left(request):
    """No test on the CPU leaves threads of the library running; one that failed before it may have."""
    before = settled(2)
    yield
    if request.node.get_closest_marker("cuda") is None:
        assert before or settled(10) == []
