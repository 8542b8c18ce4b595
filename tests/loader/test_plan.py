"""The decisions of a loader before it opens anything. Devices are made up: a plan does not touch them."""

import re
from types import SimpleNamespace

import pytest
import torch

import gdsload
from gdsload.loader import loader, plan
from gdsload.loader.budgets import limits_of
from gdsload.loader.plan import plan_loader
from gdsload.loader.ranks import Schedules
from gdsload.loader.resources import SHARE_OF_VRAM
from gdsload.loader.shown import later
from gdsload.transforms import DecodeImage

CPU, GPU, MPS, XPU = map(torch.device, ("cpu", "cuda:0", "mps", "xpu"))


class PlannedError(Exception):
    """Carries a plan out of a loader's constructor."""


@pytest.fixture
def planned(plain, monkeypatch):
    """Plans a loader for a device that need not be there."""
    monkeypatch.setattr(plan, "resolve_device", lambda device: device)
    monkeypatch.setattr(plan, "preflight", lambda *_, **__: None)

    def stop(dataset, options):
        raise PlannedError(plan_loader(dataset, options))

    monkeypatch.setattr(loader, "plan_loader", stop)

    def made(device=CPU, dataset=plain, **given):
        with pytest.raises(PlannedError) as raised:
            gdsload.DataLoader(dataset, device=device, **given)
        return raised.value.args[0]

    return made


@pytest.mark.parametrize(
    ("device", "backend", "placement", "copied"),
    [
        *((CPU, backend, "host", "") for backend in ("auto", "host")),
        *((device, "auto", "host", "by the consumer") for device in (MPS, XPU)),
        (GPU, "host", "host", "ahead"),
        *((GPU, backend, "gpu", "") for backend in ("auto", "mapped", "bounce", "gds")),
    ],
)
def test_where_batches_are_built(planned, device, backend, placement, copied):
    """MPS is used in one thread alone: in two it crashes."""
    found = planned(device, backend=backend)
    assert (found.placement, found.copies_ahead) == (placement, copied == "ahead")
    assert found.copies == (copied == "by the consumer")
    assert found.device == device


@pytest.mark.parametrize(
    ("device", "given", "in_place"),
    [
        (CPU, {}, True),
        (CPU, {"mmap": False}, False),
        (GPU, {"backend": "host"}, True),
        (GPU, {"backend": "mapped"}, True),
        (GPU, {"backend": "bounce"}, False),
        (GPU, {}, False),
        (GPU, {"backend": "mapped", "cache": "vram"}, False),  # what fills the tier reads by windows
        (CPU, {"cache": "auto"}, True),
    ],
)
def test_windows_count_where_bytes_land_in_an_arena(planned, device, given, in_place):
    order = {"shuffle": gdsload.BlockShuffle(block=10, window=100, lanes=4)}
    found = planned(device, memory=gdsload.Memory(arena=10_000), **order, **given)
    schedule = Schedules(found.schedule).newest
    assert found.in_place is in_place
    if in_place:
        assert limits_of(found, schedule).arena_bytes == 10_000
    else:
        with pytest.raises(gdsload.BudgetError, match="the arena is 9.766 KiB, but 4 lanes"):
            limits_of(found, schedule)


def test_sizes_are_numbers_from_then_on(planned):
    memory = gdsload.Memory(prefetch="1MiB", arena="2MiB", registered="4MiB")
    found = planned(GPU, cache="vram", memory=memory, backend=gdsload.Bounce(pinned="3MiB"))
    assert (found.prefetch_bytes, found.arena_bytes) == (2**20, 2 * 2**20)
    assert (found.backend.pinned_bytes, found.backend.register_bytes) == (3 * 2**20, 4 * 2**20)
    assert not found.registers_by_default


@pytest.mark.parametrize(("cache", "share"), [("none", None), ("pagecache", None), ("vram", 0.5), ("auto", 0.25)])
def test_what_is_a_share_of_what_is_free_is_left_until_it_is_taken(planned, cache, share):
    found = planned(GPU, cache=cache)
    assert found.registers_by_default
    assert found.in_vram == (share is not None)
    assert SHARE_OF_VRAM.get(cache) == share
    assert not planned(CPU, cache="auto").in_vram


@pytest.mark.parametrize(
    ("device", "given", "text"),
    [
        (CPU, {}, "the page cache, as far as the system keeps it"),
        (GPU, {"memory": gdsload.Memory(registered="1MiB")}, "memory: .*, where 1 MiB may be kept"),
        (GPU, {"memory": gdsload.Memory(registered=10)}, "memory, where 10 B of .* may be kept, and the drive"),
        (GPU, {"memory": gdsload.Memory(registered=0)}, "the drive"),
        (GPU, {"mmap": False}, "the drive"),
        (GPU, {"cache": "none"}, "the drive"),
        (GPU, {"backend": "bounce"}, "the drive"),
        (GPU, {"backend": "mapped"}, "the page cache, as far as the system keeps it"),
        (GPU, {"cache": "vram"}, "VRAM, as far as it has room"),
    ],
)
def test_a_loader_as_text_says_where_later_epochs_come_from(planned, device, given, text):
    assert re.fullmatch(text, later(planned(device, **given)))


def test_options_are_refused_before_the_dataset_is_looked_at(tmp_path):
    with pytest.raises(gdsload.OptionError, match="batch_size is"):
        gdsload.DataLoader(tmp_path / "nothing", 0, device="cpu")


def images(path):
    with gdsload.ShardWriter(path, {"image": gdsload.Field("image")}) as writer:
        writer.write({"image": b"\xff\xd8\xff"})
    return path


@pytest.mark.parametrize(("cache", "fixed"), [("vram", True), ("auto", True), ("vram", False), ("none", True)])
def test_decoded_images_take_the_place_of_shards_in_vram(planned, tmp_path, cache, fixed):
    wanted = DecodeImage(size=8, crop="center" if fixed else "random-resized", flip=0.5)
    found = planned(GPU, images(tmp_path / "d"), cache=cache, decode={"image": wanted})
    assert found.keeps_images is (fixed and cache != "none")
    assert found.in_vram is (not fixed and cache != "none")


@pytest.mark.parametrize(
    ("gib", "device", "ahead_mib"),
    [(0, GPU, 512), (10, GPU, 512), (24, GPU, 512), (40, GPU, 640), (80, GPU, 1024), (141, GPU, 1024), (80, CPU, 256)],
)
def test_budgets_are_shares_of_the_gpus_memory(planned, monkeypatch, gib, device, ahead_mib):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gib > 0)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=gib * 2**30 * (device == GPU))
    )
    found = planned(device)
    assert found.prefetch_bytes == ahead_mib * 2**20
    assert found.arena_bytes == (2 * found.prefetch_bytes if device == GPU else 2**30)
    assert planned(device, memory=gdsload.Memory(prefetch=7, arena="5MiB")).prefetch_bytes == 7
    assert planned(device, memory=gdsload.Memory(prefetch=7)).arena_bytes == found.arena_bytes
    assert planned(device, memory=gdsload.Memory(arena="5MiB")).arena_bytes == 5 * 2**20


@pytest.mark.parametrize(
    ("prefetch", "arena", "landing_mib"),
    [(None, None, 128), ("8GiB", None, 256), ("1MiB", None, 128), ("1GiB", "800MiB", 200), ("1GiB", "1MiB", 128)],
)
def test_groups_that_land_in_the_arena_are_a_quarter_of_the_budgets(planned, monkeypatch, prefetch, arena, landing_mib):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # default budgets do not follow a GPU's memory
    given = {"memory": gdsload.Memory(prefetch=prefetch, arena=arena)}
    found = planned(GPU, backend="bounce", **given)
    assert limits_of(found, Schedules(found.schedule).newest).landing_bytes == landing_mib * 2**20
    for found in (planned(CPU, **given), planned(GPU, sample_transform=dict, **given)):
        assert not limits_of(found, Schedules(found.schedule).newest).landing_bytes


def test_images_are_kept_where_batches_are_built(planned, tmp_path):
    given = {"decode": {"image": DecodeImage()}, "cache": "ram"}
    assert planned(CPU, images(tmp_path / "d"), **given).keeps_images
    with pytest.raises(gdsload.OptionError, match="cache is 'ram', but batches .* the GPU"):
        planned(GPU, tmp_path / "d", **given)
