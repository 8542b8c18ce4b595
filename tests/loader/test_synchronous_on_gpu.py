"""`ahead=False` on a GPU: by every way that bytes travel, the thread that asks for a batch makes it."""

import threading

import numpy as np
import pytest

from gdsload import BlockShuffle, DataLoader, ShardWriter
from tests.on_gpu import WAYS, epoch_prints

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="session")
def numbered(tmp_path_factory):
    path = tmp_path_factory.mktemp("one-thread") / "d"
    with ShardWriter(path, shard_bytes="64KiB") as writer:
        writer.write_batch({"x": np.repeat(np.arange(3000, dtype=np.int32)[:, None], 40, axis=1)})
    return path


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("order", [{}, {"shuffle": "full"}, {"shuffle": BlockShuffle(block=16, window=64, lanes=2)}])
def test_batches_are_those_that_are_made_ahead(numbered, way, order):
    here = threading.get_ident()

    def transform(batch):
        assert threading.get_ident() == here
        return {**batch, "y": batch["x"] + 1}

    def plain(batch):
        return {**batch, "y": batch["x"] + 1}

    options = {"batch_size": 64, "device": "cuda", **way, **order}
    wanted = epoch_prints(numbered, 3, device_transform=plain, **options)
    assert epoch_prints(numbered, 3, device_transform=transform, ahead=False, **options) == wanted


def test_samples_are_transformed_in_the_thread_that_asks(numbered):
    here, calls = threading.get_ident(), []

    def transform(sample):
        calls.append(threading.get_ident())
        return {"x": sample["x"] * 2}

    with DataLoader(numbered, 64, device="cuda", sample_transform=transform, ahead=False) as loader:
        batch = next(iter(loader))
    assert batch["x"].is_cuda
    assert batch["x"][:, 0].tolist() == list(range(0, 128, 2))
    assert calls == [here] * 64
