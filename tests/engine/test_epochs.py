"""The route of an epoch: its source and its threads."""

import re
from types import SimpleNamespace

import pytest
import torch

from gdsload.engine import epochs
from gdsload.engine.landed import LandedSource
from gdsload.engine.limits import Limits, Runner
from gdsload.engine.stats import LoaderStats

BY_CONSUMER, ONE_GROUP = Runner(0, tapers=True), Runner(0, most_groups=1, at_once=True)
THREADS = {count: Runner(count, most_batches=256) for count in (1, 2)}


def prefetch(maker, *, transform=None, ahead=True, **backend):
    job, limits = SimpleNamespace(transform=transform, steps=None), Limits(1 << 30, 1, 64 << 20, 16 << 20, 1)
    backend = SimpleNamespace(**backend)
    return epochs.prefetch(job, backend, maker, limits=limits, start=3, stats=LoaderStats(), ahead=ahead)


@pytest.fixture
def landed(monkeypatch):
    """Says whether the source that reads takes a processor, which is the only one."""
    monkeypatch.setattr(epochs.ResidentGather, "of", lambda *_: None)
    monkeypatch.setattr(LandedSource, "__init__", lambda *_: None)
    return lambda takes: monkeypatch.setattr(LandedSource, "takes_processor", takes, raising=False)


@pytest.mark.parametrize(
    ("facts", "transform", "source", "runner"),
    [
        (None, None, "LandedSource", THREADS[2]),
        ("over_pcie planned_by_gpu", None, "ResidentSource", THREADS[2]),
        ("ready", "flip", "VramSource", ONE_GROUP),
        ("ready planned_by_gpu", None, "VramSource", ONE_GROUP),
        ("ready ids_from_host", None, "ResidentSource", THREADS[2]),
        ("ready over_pcie", None, "ResidentSource", THREADS[1]),
        ("ready over_pcie planned_by_gpu", "flip", "ResidentSource", THREADS[1]),
        ("ready over_pcie planned_by_gpu", None, "ResidentSource", BY_CONSUMER),
    ],
)
def test_who_makes_batches_by_where_the_shards_are_and_what_is_left_for_the_host(
    monkeypatch, landed, facts, transform, source, runner
):
    landed(False)
    true, gather = (facts or "").split(), None
    if facts is not None:
        gather = SimpleNamespace(**{name: name in true for name in ("over_pcie", "planned_by_gpu", "ids_from_host")})
        gather.ready, gather.prepare = lambda: "ready" in true, lambda: prepared.append("addresses")
    monkeypatch.setattr(epochs.ResidentGather, "of", lambda *_: gather)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: None)
    maker = object.__new__(epochs.DeviceAssembler)
    maker.device, maker.stream, maker.follow = torch.device("cuda", 0), None, lambda: None
    prepared = []
    maker.prepare = lambda: prepared.append("batches")
    found = prefetch(maker, transform=transform, addressable=True)
    assert (type(found.source).__name__, found.runner) == (source, runner)
    assert re.search("the GPU gathers" if "ready" in true else "samples are read", found.runner.reason)
    assert bool(prepared) == (not runner.threads)  # threads do it after a first group
    found.runner.prepare()
    assert prepared == ["batches"] + ["addresses"] * (facts is not None and "ready" not in true)


@pytest.mark.parametrize("takes_processor", [False, True])
def test_a_consumer_that_wants_nothing_ahead_makes_each_batch_by_itself(landed, takes_processor):
    landed(takes_processor)
    maker = SimpleNamespace(takes_processor=takes_processor, images=None, follow=lambda: None, onto=None)
    maker.prepare = lambda: None
    found = prefetch(maker, ahead=False, addressable=False, in_place=True)
    assert found.runner == Runner(threads=0, most_groups=1, most_batches=1)
    by = "processors" if takes_processor else "the GPU"
    assert found.runner.reason == (
        f"samples are read, and gathered by {by}; each batch when it is asked for, by that thread"
    )


@pytest.mark.parametrize("copies", [False, True])
def test_groups_of_a_maker_that_takes_a_processor_are_of_few_batches(landed, copies):
    """Made by a further thread, where each waits for its copies to a device."""
    landed(True)
    maker = SimpleNamespace(takes_processor=True, onto=object() if copies else None)
    found = prefetch(maker, addressable=False, in_place=True)
    assert (found.runner.most_batches, found.runner.threads) == (64, epochs.gatherers(copies=copies) - (not copies))


def test_windows_are_read_as_runs_where_they_can_be(monkeypatch):
    windows = SimpleNamespace(takes_processor=False)
    monkeypatch.setattr(epochs.WindowSource, "of", lambda *_: windows)
    found = prefetch(object.__new__(epochs.DeviceAssembler), addressable=False)
    assert (found.source, found.runner) == (windows, THREADS[1])
