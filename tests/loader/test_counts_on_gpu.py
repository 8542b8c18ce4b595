"""The counters of a running loader on a GPU."""

import importlib

import pytest
import torch

from gdsload import DataLoader
from gdsload.system import spans

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize(
    ("options", "held"), [({"cache": "vram"}, "vram_bytes"), ({"backend": "mapped"}, "registered_bytes"),
                          ({"backend": "bounce", "cache": "none"}, "pinned_bytes")],
)  # fmt: skip
def test_what_is_held(numbered, options, held):
    with DataLoader(numbered, 256, device="cuda", **options) as loader:
        others = getattr(loader.stats, held)  # of loaders that earlier tests have left to the collector
        for _ in range(2):
            for _ in loader:
                pass
        torch.cuda.synchronize()
        found = loader.stats.as_dict()
        assert found[held] > others
        assert found["bytes"] >= 20_000 * 4096
        assert 0 <= found["starved_share"] <= 1
        assert loader.diagnose().evidence["vram_room"] > 0
    assert getattr(loader.stats, held) <= others


def test_ranges_for_nsight(monkeypatch):
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    noted = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", noted.append)
    with importlib.reload(spans).span("gdsload::read"):
        pass
    monkeypatch.undo()
    importlib.reload(spans)
    assert noted == ["gdsload::read"]
