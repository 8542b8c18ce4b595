"""Which jobs' windows are read as runs, so that the GPU finds the samples in them."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import gdsload
from gdsload.backends.host import HostBackend
from gdsload.engine import resident, window_source
from gdsload.engine.clips import ClipCodec
from gdsload.engine.stats import LoaderStats
from gdsload.engine.steps import Ordered
from gdsload.engine.window_source import WindowSource
from gdsload.order import BlockOrder, FullOrder, Schedule
from gdsload.testing import RecordingBackend
from tests.engine.jobs import job_over
from tests.engine.on_host import HostMaker, Ids

BLOCKS = BlockOrder([100], block=10, window=30, lanes=3, key=7)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """100 samples: of one shape, of none, of no bytes."""
    path = tmp_path_factory.mktemp("some") / "shards"
    fields = {
        "x": gdsload.Field("int64", (40,)),
        "ragged": gdsload.Field("int64", (None,)),
        "empty": gdsload.Field("int64", (0,)),
    }
    with gdsload.ShardWriter(path, fields) as writer:
        for number in range(100):
            writer.write({"x": np.full(40, number), "ragged": np.arange(number % 3), "empty": np.zeros(0, np.int64)})
    return gdsload.ShardDataset(path)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"fields": ("x", "empty")}, True),
        ({"schedule": {"rank": 1, "world_size": 3}}, True),
        ({"schedule": {"tail": "drop"}}, True),
        ({"schedule": {"tail": "pad"}}, False),  # whose last step has samples for a second time
        ({"order": FullOrder(100, 1)}, False),
        ({"order": BlockOrder([100], block=1, window=1, lanes=1, key=7), "schedule": {"batch_size": 100}}, True),
        ({"order": BlockOrder([100], block=1, window=1, lanes=257, key=7)}, False),  # which the GPU cannot work out
        ({"fields": ("x", "ragged")}, False),
        ({"fields": ("empty",)}, False),
        ({"kernel": False}, False),
        ({"index": "index"}, False),
        ({"ids": np.arange(100)}, False),
        ({"offsets": {"x": range(2)}}, False),
        ({"backend": {"in_place": True}}, False),
        ({"backend": {"addressable": True}}, False),
        ({"maker": "host"}, False),
        ({"room": False}, False),
    ],
)  # fmt: skip
def test_whose_windows_are_read_as_runs(dataset, monkeypatch, changes, expected):
    monkeypatch.setattr(window_source, "PositionGather", lambda *_given, **_options: None)
    monkeypatch.setattr(window_source, "BlockIds", Ids)
    monkeypatch.setattr(Ids, "room", changes.get("room", True))
    monkeypatch.setattr(resident, "DeviceAssembler", HostMaker if changes.get("maker") != "host" else str)
    order, schedule = changes.get("order", BLOCKS), {"batch_size": 8, **changes.get("schedule", {})}
    steps = Ordered(order, Schedule(100, lanes=order.lanes, **schedule))
    job, form = job_over(dataset, steps, changes.get("fields", ("x",)), ids=changes.get("ids"))
    form = replace(form, index=changes.get("index"))
    if "offsets" in changes:
        form = replace(form, codecs={"x": ClipCodec(form.codecs["x"], changes["offsets"])})
    backend = SimpleNamespace(**{"in_place": False, "addressable": False, **changes.get("backend", {})})
    found = WindowSource.of(job, backend, HostMaker(form, kernel=changes.get("kernel", True)), LoaderStats())
    assert (found is not None) == expected
    if found is not None:
        assert type(found.again()) is window_source.LandedSource
    job.table.files.close()


def test_ids_that_cannot_be_made_hold_no_window(dataset, monkeypatch):
    """The group is made by the host, then, and must have the memory."""

    class Failing(Ids):
        def __call__(self, _steps):
            raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(window_source, "BlockIds", Failing)
    monkeypatch.setattr(window_source, "PositionGather", lambda *_given, **_options: None)
    monkeypatch.setattr(window_source, "on", nullcontext)
    schedule = Schedule(100, 8, lanes=3)
    job, form = job_over(dataset, Ordered(BLOCKS, schedule), ("x",))
    backend = RecordingBackend(HostBackend(job.table.files))
    source = WindowSource(job, BLOCKS, schedule, backend, HostMaker(form, kernel=True), LoaderStats())
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        source.start(range(3))
    source.close()
    assert backend.reads
    assert backend.held_bytes == 0
    backend.close()
