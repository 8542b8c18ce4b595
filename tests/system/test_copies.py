"""Which runs go by the driver's call for many."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from gdsload.system import copies
from gdsload.system.copies import SHORT_BYTES, copy_to


class Driver:
    """Takes notes of what is queued: target, source and bytes."""

    def __init__(self, takes_many):
        self.takes_many, self.many, self.alone = takes_many, [], []

    def inside(self, _device):
        return nullcontext()

    def copy_many(self, targets, sources, nbytes, stream):
        assert stream == 7
        assert all(column.flags.c_contiguous for column in (targets, sources, nbytes))
        self.many += zip(targets.tolist(), sources.tolist(), nbytes.tolist(), strict=True) if self.takes_many else []
        return self.takes_many

    def copy_any(self, target, source, nbytes, stream):
        assert stream == 7
        self.alone.append((target, source, nbytes))


@pytest.mark.parametrize("takes_many", [True, False])
@pytest.mark.parametrize(
    ("nbytes", "many"),
    [
        ([SHORT_BYTES, SHORT_BYTES], 2),
        ([SHORT_BYTES, 1, SHORT_BYTES - 1, 2**30], 2),
        ([1, 2, 3], 0),
        ([SHORT_BYTES, 5], 0),  # one alone needs no such call
        ([2**31], 0),
        ([], 0),
    ],
)
def test_short_runs_are_queued_one_by_one(monkeypatch, nbytes, many, takes_many):
    """The driver has crashed with many of them."""
    calls = Driver(takes_many)
    monkeypatch.setattr(copies, "driver", lambda: calls)
    monkeypatch.setattr(copies, "stream_handle", lambda _device: 7)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    sources, targets = [100 + number for number in range(len(nbytes))], np.arange(len(nbytes)) * 2**32
    copy_to(sources, np.array(nbytes, np.int64), targets, None, torch.device("cuda", 0))
    wanted = list(zip(targets.tolist(), sources, nbytes, strict=True))
    assert sorted(calls.many + calls.alone) == wanted
    assert len(calls.many) == (many if takes_many else 0)
    assert all(run[2] >= SHORT_BYTES for run in calls.many)
