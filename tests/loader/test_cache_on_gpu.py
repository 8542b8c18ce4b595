"""Tiers: later epochs come from where the samples were put, and are the same batches."""

import threading
import time

import pytest
import torch

from gdsload import BlockShuffle, DataLoader, Memory
from gdsload.engine.resident_source import VramSource
from gdsload.tools.bench.cache_state import drop, look
from tests.loader.taking import prints
from tests.on_gpu import check_each_once, epoch_prints, wait_until_kept

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("backend", ["auto", "bounce", "mapped"])
@pytest.mark.parametrize("shuffle", [False, "full", "block"])
def test_epochs_in_vram_are_those_of_the_cpu(varied, shuffle, backend):
    options = {"batch_size": 17, "shuffle": shuffle, "seed": 5, "with_index": True}
    expected = epoch_prints(varied, 3, device="cpu", **options)
    with DataLoader(varied, device="cuda", backend=backend, cache="vram", **options) as loader:
        assert prints(loader) == expected[0]
        wait_until_kept(loader)
        before = loader.backend.bytes_by_path
        assert [prints(loader) for _ in range(2)] == expected[1:]
        after = loader.backend.bytes_by_path
    assert {path: count for path, count in after.items() if path != "vram"} == {
        path: count for path, count in before.items() if path != "vram"
    }, "something was read again"
    assert after["vram"] > before.get("vram", 0)


@pytest.mark.parametrize("register_bytes", [0, 60_000])
@pytest.mark.parametrize("shuffle", [False, "full", "block"])
def test_texts_come_from_shards_in_vram_in_mappings_and_registered(varied, shuffle, register_bytes):
    """All in one batch: the host reads what is in a mapping, also where the GPU could not."""
    options = {"batch_size": 40, "shuffle": shuffle, "seed": 5, "with_index": True}
    expected = epoch_prints(varied, 3, device="cpu", **options)
    tiers = {"cache": "vram", "memory": Memory(vram=60_000, registered=register_bytes)}
    with DataLoader(varied, device="cuda", **tiers, **options) as loader:
        assert prints(loader) == expected[0]
        deadline = time.monotonic() + 20
        while not loader.cache.tiers["vram"].trouble and time.monotonic() < deadline:
            time.sleep(0.01)
        assert 0 < loader.cache.tiers["vram"].shards < loader.cache.shards
        before = loader.backend.bytes_by_path.get("host", 0)
        assert [prints(loader) for _ in range(2)] == expected[1:]
        assert loader.backend.bytes_by_path["host"] > before


@pytest.mark.parametrize("shuffle", [False, "full", "block"])
def test_an_epoch_of_plain_fields_needs_no_thread(numbered, shuffle, monkeypatch):
    made = []
    real = VramSource.start
    monkeypatch.setattr(VramSource, "start", lambda self, steps: (made.append(1), real(self, steps))[1])
    with DataLoader(numbered, 300, shuffle, device="cuda", cache="vram") as loader:
        for epoch in range(3):
            check_each_once(loader)
            if not epoch:
                wait_until_kept(loader)
                assert not made
                before = loader.backend.bytes_by_path.get("vram", 0)
        assert made
        assert not [one for one in threading.enumerate() if one.name.rstrip("0123456789") == "gdsload-"]
        assert loader.backend.bytes_by_path["vram"] - before == 2 * 20_000 * 4096


def test_a_budget_for_some_of_the_shards(numbered):
    with DataLoader(
        numbered, 300, "full", device="cuda", cache="vram", memory=Memory(vram="40MiB"), backend="bounce"
    ) as loader:
        list(loader)
        wait_until_kept(loader, 2)
        time.sleep(0.1)
        before = loader.backend.bytes_by_path.get("vram", 0)
        check_each_once(loader)
        tier = loader.cache.tiers["vram"]
        # Every sample comes once, so what came out of the tier is what it holds.
        assert loader.backend.bytes_by_path["vram"] - before == tier.held_bytes
        assert (tier.shards, tier.evictions, tier.budget_bytes) == (2, 0, 40 * 2**20)
        assert "used up" in tier.trouble
        assert "used up" in str(loader.cache)


@pytest.mark.parametrize("shuffle", [False, "full", "block"])
def test_a_consumer_that_changes_its_stream(numbered, shuffle):
    """In mid-epoch, and in the middle of a group; each stream is late, and nobody waits for it.

    What was queued before a batch was dropped still reads it: its memory is ordered on the consumer's stream.
    """
    options = {"batch_size": 100, "shuffle": shuffle, "seed": 2}
    if shuffle == "block":
        options |= {"shuffle": BlockShuffle(block=64, window=900, lanes=4)}
    with DataLoader(numbered, device="cpu", **options) as loader:
        loader.set_epoch(1)
        expected = torch.cat([batch["x"][:, 0] for batch in loader])
    streams = [torch.cuda.Stream() for _ in range(3)]
    with DataLoader(numbered, device="cuda", cache="vram", **options) as loader:
        for _ in loader:
            pass
        wait_until_kept(loader)
        epoch, found = iter(loader), []
        for number in range(200):
            with torch.cuda.stream(streams[number // 7 % 3]):
                torch.cuda._sleep(1_000_000)
                found.append(next(epoch)["x"][:, 0].clone())
        torch.cuda.synchronize()
        assert torch.equal(torch.cat(found).cpu(), expected)


def test_closing_while_the_tier_fills_and_while_an_epoch_runs(numbered):
    for pause in (0.0, 0.002, 0.02):
        loader = DataLoader(numbered, 300, "full", device="cuda", cache="vram")
        epoch = iter(loader)
        next(epoch)
        time.sleep(pause)
        loader.close()
    with DataLoader(numbered, 300, "full", device="cuda", cache="vram") as loader:
        list(loader)
        wait_until_kept(loader)
        epoch = iter(loader)
        kept = [next(epoch)["x"] for _ in range(5)]
    torch.cuda.synchronize()
    assert all((one == one[:, :1]).all() for one in kept)


def test_memory_comes_back(numbered):
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    with DataLoader(numbered, 300, device="cuda", cache="vram") as loader:
        list(loader)
        wait_until_kept(loader)
        assert torch.cuda.memory_allocated() - before >= 20_000 * 4096
    assert torch.cuda.memory_allocated() <= before


def test_auto_fills_vram_and_then_the_page_cache(numbered):
    options = {"cache": "auto", "memory": Memory(vram="40MiB", registered="1GiB")}
    with DataLoader(numbered, 300, "full", device="cuda", **options) as loader:
        deadline, wanted = time.monotonic() + 20, {"vram": 2, "pagecache": loader.cache.shards}
        found = {}
        while time.monotonic() < deadline and found != wanted:
            list(loader)
            found = {name: tier.shards for name, tier in loader.cache.tiers.items()}
        assert found == wanted, loader.cache


@pytest.fixture
def cold(numbered):
    """The files of the numbered dataset, of which nothing is in the page cache."""
    names = [str(path) for path in sorted(numbered.glob("*.safetensors"))]
    if not drop(names).cold:
        pytest.skip("this file system keeps its pages")
    return names


@pytest.mark.parametrize("shuffle", [False, "block", "full"])
def test_default_options_read_a_cold_dataset_once(numbered, cold, shuffle):
    """Batches are right while shards are read in and registered, and no epoch after that reads from the drive."""
    expected = torch.arange(20_000, dtype=torch.int32)
    with DataLoader(numbered, 100, shuffle, device="cuda") as loader:
        deadline = time.monotonic() + 60
        while True:
            seen = []
            for batch in loader:
                assert (batch["x"] == batch["x"][:, :1]).all()
                seen.append(batch["x"][:, 0])
                time.sleep(0.002)
            assert torch.equal(torch.cat(seen).sort().values.cpu(), expected)
            tier = loader.cache.tiers["pagecache"]
            if tier.shards == loader.cache.shards or time.monotonic() > deadline:
                break
        assert (tier.shards, tier.trouble) == (loader.cache.shards, "")
        assert look(cold).hot
        assert "bounce-direct" not in loader.backend.bytes_by_path
        assert loader.backend.answer.startswith("mapped: every byte")


@pytest.mark.parametrize(("options", "kept"), [({"cache": "none"}, 0), ({"memory": Memory(registered="45MiB")}, 2)])
def test_what_is_not_kept_is_read_around_the_page_cache(numbered, cold, options, kept):
    with DataLoader(numbered, 300, "full", device="cuda", **options) as loader:
        deadline = time.monotonic() + 20
        list(loader)
        while loader.cache.tiers["pagecache"].shards < kept and time.monotonic() < deadline:
            list(loader)
        assert loader.cache.tiers["pagecache"].shards == kept, loader.cache
        assert loader.backend.bytes_by_path["bounce-direct"] > 0
    if not kept:  # looks at files that are not kept read some of them in
        assert look(cold).share <= 0.3


@pytest.mark.usefixtures("two_gpus")
def test_two_devices_in_one_process(numbered):
    """Both on their default streams, which CUDA gives one handle."""
    for index in (0, 1, 0):
        with DataLoader(numbered, 300, "full", device=f"cuda:{index}", cache="vram") as loader:
            list(loader)
            wait_until_kept(loader)
            assert {batch["x"].device.index for batch in check_each_once(loader)} == {index}
