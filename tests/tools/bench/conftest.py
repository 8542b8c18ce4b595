"""Datasets that benchmarks are tested with."""

import numpy as np
import pytest

import gdsload
from gdsload.tools.bench import cache_state, make_plan


@pytest.fixture(scope="session")
def bench_data(tmp_path_factory):
    """700 samples of all kinds of fields; the four small ones are packed, and one is called as the loader calls its own."""
    path = tmp_path_factory.mktemp("bench") / "shards"
    schema = {
        "image": gdsload.Field("uint8", (32, 32)),
        "tokens": gdsload.Field("int16", (None,)),
        "text": "str",
        "blob": "bytes",
    } | dict.fromkeys(("label", "index", "a", "b"), gdsload.Field("int64"))
    random = np.random.default_rng(0)
    with gdsload.ShardWriter(path, schema, shard_bytes="256KiB") as writer:
        for number in range(700):
            sample = {
                "image": random.integers(0, 256, (32, 32), np.uint8),
                "tokens": np.arange(number % 5, dtype=np.int16),
                "text": "é" * (number % 3),
                "blob": bytes(number % 4),
            }
            writer.write(sample | dict.fromkeys(("label", "index", "a", "b"), number))
    return str(path)


@pytest.fixture
def planned(bench_data):
    """Plans of short turns."""

    def plan(path=bench_data, **options):
        return make_plan(
            str(path), **{"device": "cpu", "turns": 2, "seconds": 0.02, "batch_size": 50, "torch_row": False} | options
        )

    return plan


@pytest.fixture
def drops(planned):
    """Skips the test where files cannot be dropped from the page cache."""
    plan = planned()
    if cache_state.why_blind(plan.files) or not cache_state.drop(plan.files).cold:
        pytest.skip("files cannot be dropped from the page cache here")
