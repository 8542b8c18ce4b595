"""Who delivers an epoch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from gdsload.engine import delivery
from gdsload.engine.ahead import AheadPipeline
from gdsload.engine.gpu.assemble_device import DeviceAssembler
from gdsload.engine.groups import Limits
from gdsload.engine.pipeline import Pipeline
from gdsload.engine.resident import ResidentPipeline
from gdsload.engine.stats import LoaderStats

LIMITS = Limits(1 << 30, 1, 64 << 20, 16 << 20, 1)


@pytest.mark.parametrize(
    ("facts", "transform", "expected"),
    [
        (None, None, Pipeline),
        ({"ready": False, "over_pcie": True, "planned_by_gpu": True}, None, Pipeline),
        ({"ready": True, "over_pcie": False, "planned_by_gpu": False}, "flip", ResidentPipeline),
        ({"ready": True, "over_pcie": False, "planned_by_gpu": True}, None, ResidentPipeline),
        ({"ready": True, "over_pcie": False, "planned_by_gpu": False, "told": True}, None, Pipeline),
        ({"ready": True, "over_pcie": True, "planned_by_gpu": False}, None, Pipeline),
        ({"ready": True, "over_pcie": True, "planned_by_gpu": True}, "flip", Pipeline),
        ({"ready": True, "over_pcie": True, "planned_by_gpu": True}, None, AheadPipeline),
    ],
)
def test_by_where_the_shards_are_and_what_is_left_for_the_host(monkeypatch, facts, transform, expected):
    direct = None
    if facts is not None:
        ready = facts["ready"]
        direct = SimpleNamespace(**{"told": False, **facts, "ready": lambda: ready})
    monkeypatch.setattr(delivery.Direct, "of", lambda *_: direct)
    made = []
    for kind in (Pipeline, ResidentPipeline, AheadPipeline):
        monkeypatch.setattr(delivery, kind.__name__, lambda *_, kind=kind, **options: made.append((kind, options)))
    maker = object.__new__(DeviceAssembler)
    maker.device = torch.device("cuda", 0)
    job = SimpleNamespace(transform=transform)
    delivery.deliver(job, None, maker, limits=LIMITS, start=3, stats=LoaderStats())
    ((kind, options),) = made
    assert kind is expected
    assert options["start"] == 3
    if kind is ResidentPipeline:
        assert options["group"] == (8 if transform is None else 4)
    else:
        assert options["limits"] is LIMITS
