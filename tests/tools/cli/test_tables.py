"""What bench shows: tables that fit a terminal of 80 columns, with numbers that people read."""

from pathlib import Path

import pytest

from gdsload.tools.cli import bench
from tests.tools.golden import golden

GOLDEN = Path(__file__).parent / "golden"

SPREAD = {"median": 1234.5678, "q1": 0.0123456, "q3": 12.3456}


def entry(name, **more):
    return {
        "contender": name, "gb_per_s": SPREAD, "first_batch_s": {"median": 1.07}, "wait_share": {"median": 0.123},
        "bytes_by_path": {"gds-p2p": 3 * 2**30, "host": 2**20}, "copied_bytes": 0,
        "trials": [{"backend": "gds", "reason": "cuFile's counters moved under P2PDMA, on all four drives of this machine"}],
    } | more  # fmt: skip


@pytest.fixture
def record():
    hot = {
        "state": "hot",
        "checked": "4001 of 4001 pages in the page cache, by mincore, after the last trial",
        "warning": "",
        "contenders": [entry("direct, auto"), entry("by RAM", copied_bytes=2**31, bytes_by_path={})],
    }
    return {
        "machine": {"cpu": "AMD EPYC 9654 96-Core Processor", "cores": 1, "ram_bytes": 2**40, "kernel": "6.8.0", "gpu": "NVIDIA H200"},
        "versions": {"gdsload": "0.1.0", "python": "3.11.7", "torch": "2.13.0", "numpy": "2.4.6", "cuda": "13.0"},
        "dataset": {"path": "/data/shards", "samples": 1, "bytes": 2**40, "shards": 1, "file_system": "ext4"},
        "conditions": {
            "device": "cuda:0", "batch_size": 256, "shuffle": "full", "trials": 1, "seconds": 2.5,
            "notes": ["cold: not in this kernel's page cache; what caches drives and hosts below it have is not known"],
        },
        "contenders": [{"name": "direct, auto", "way": "SSD→VRAM"}, {"name": "by RAM", "way": "SSD→RAM→VRAM"}],
        "verified": [{"samples": 512, "bytes": 2**21}, {"samples": 512, "bytes": 2**21}],
        "cold": {"state": "not cold: files of tmpfs are in memory alone, and nothing that is there can be dropped from it", "contenders": []},
        "hot": hot,
    }  # fmt: skip


@pytest.mark.parametrize("columns", [80, 120])
def test_bench(record, columns):
    text = bench.render_text(record, columns)
    assert max(map(len, text.splitlines())) <= columns
    assert "e+0" not in text
    golden(GOLDEN / f"bench-{columns}.txt", text + "\n")
