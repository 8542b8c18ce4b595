"""Who makes the batches of an epoch."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import torch

from gdsload.engine import epochs
from gdsload.engine.landed import LandedSource
from gdsload.engine.limits import Limits, Runner
from gdsload.engine.stats import LoaderStats

BY_CONSUMER, ONE_GROUP = Runner(0, tapers=True), Runner(0, most_groups=1)
THREADS = {count: Runner(count, most_batches=256) for count in (1, 2)}


@pytest.mark.parametrize(
    ("facts", "transform", "source", "runner"),
    [
        (None, None, "LandedSource", THREADS[2]),
        ({"ready": False, "over_pcie": True, "planned_by_gpu": True}, None, "ResidentSource", THREADS[2]),
        ({"ready": True, "over_pcie": False, "planned_by_gpu": False}, "flip", "VramSource", ONE_GROUP),
        ({"ready": True, "over_pcie": False, "planned_by_gpu": True}, None, "VramSource", ONE_GROUP),
        (
            {"ready": True, "over_pcie": False, "planned_by_gpu": False, "ids_from_host": True},
            None,
            "ResidentSource",
            THREADS[2],
        ),
        ({"ready": True, "over_pcie": True, "planned_by_gpu": False}, None, "ResidentSource", THREADS[1]),
        ({"ready": True, "over_pcie": True, "planned_by_gpu": True}, "flip", "ResidentSource", THREADS[1]),
        ({"ready": True, "over_pcie": True, "planned_by_gpu": True}, None, "ResidentSource", BY_CONSUMER),
    ],
)
def test_who_makes_batches_by_where_the_shards_are_and_what_is_left_for_the_host(
    monkeypatch, facts, transform, source, runner
):
    gather = None
    if facts is not None:
        ready = facts["ready"]
        gather = SimpleNamespace(**{"ids_from_host": False, **facts, "ready": lambda: ready})
        gather.prepare = lambda: prepared.append("addresses")
    monkeypatch.setattr(epochs.ResidentGather, "of", lambda *_: gather)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: None)
    monkeypatch.setattr(LandedSource, "__init__", lambda *_: None)
    monkeypatch.setattr(LandedSource, "takes_processor", False, raising=False)
    maker = object.__new__(epochs.DeviceAssembler)
    maker.device, maker.stream, maker.follow = torch.device("cuda", 0), None, lambda: None
    prepared = []
    maker.prepare = lambda: prepared.append("batches")
    job = SimpleNamespace(transform=transform, steps=None)
    limits = Limits(1 << 30, 1, 64 << 20, 16 << 20, 1)
    reaching = SimpleNamespace(addressable=True)
    found = epochs.prefetch(job, reaching, maker, limits=limits, start=3, stats=LoaderStats(), ahead=True)
    assert (type(found.source).__name__, found.runner) == (source, runner)
    assert re.search("samples are read" if not (facts or {}).get("ready") else "the GPU gathers", found.runner.reason)
    assert bool(prepared) == (not runner.threads)  # threads do it after a first group
    found.runner.prepare()
    assert prepared == ["batches"] + ["addresses"] * (facts is not None and not facts["ready"])


@pytest.mark.parametrize("takes_processor", [False, True])
def test_a_consumer_that_wants_nothing_ahead_makes_each_batch_by_itself(monkeypatch, takes_processor):
    monkeypatch.setattr(epochs.ResidentGather, "of", lambda *_: None)
    monkeypatch.setattr(LandedSource, "__init__", lambda *_: None)
    monkeypatch.setattr(LandedSource, "takes_processor", takes_processor, raising=False)
    maker = SimpleNamespace(takes_processor=takes_processor, images=None, follow=lambda: None, onto=None)
    maker.prepare = lambda: None
    job, limits = SimpleNamespace(transform=None, steps=None), Limits(1 << 30, 1, 64 << 20, 16 << 20, 1)
    backend = SimpleNamespace(addressable=False, in_place=True)
    found = epochs.prefetch(job, backend, maker, limits=limits, start=0, stats=LoaderStats(), ahead=False)
    assert found.runner == Runner(threads=0, most_groups=1, most_batches=1)
    by = "processors" if takes_processor else "the GPU"
    assert found.runner.reason == (
        f"samples are read, and gathered by {by}; each batch when it is asked for, by that thread"
    )


@pytest.mark.parametrize(("by", "more"), [("memory", 0), ("copies", 1)])
def test_groups_of_a_maker_that_takes_a_processor_are_of_few_batches(monkeypatch, by, more):
    """Made by a further thread, where each waits for its copies to a device."""
    monkeypatch.setattr(epochs.ResidentGather, "of", lambda *_: None)
    monkeypatch.setattr(LandedSource, "__init__", lambda *_: None)
    monkeypatch.setattr(LandedSource, "takes_processor", True, raising=False)
    job, onto = SimpleNamespace(transform=None, steps=None), None if by == "memory" else object()
    limits, backend = Limits(1 << 30, 1, 64 << 20, 16 << 20, 1), SimpleNamespace(addressable=False, in_place=True)
    maker = SimpleNamespace(takes_processor=True, onto=onto)
    found = epochs.prefetch(job, backend, maker, limits=limits, start=0, stats=LoaderStats(), ahead=True)
    assert (found.runner.most_batches, found.runner.threads) == (64, epochs.gatherers(copies=bool(more)) - 1 + more)


def test_windows_are_read_as_runs_where_they_can_be(monkeypatch):
    windows = SimpleNamespace(takes_processor=False)
    monkeypatch.setattr(epochs.WindowSource, "of", lambda *_: windows)
    maker, job = object.__new__(epochs.DeviceAssembler), SimpleNamespace(transform=None, steps=None)
    reading, limits = SimpleNamespace(addressable=False), Limits(1 << 30, 1, 64 << 20, 16 << 20, 1)
    found = epochs.prefetch(job, reading, maker, limits=limits, start=0, stats=LoaderStats(), ahead=True)
    assert (found.source, found.runner) == (windows, THREADS[1])
