"""Training on one rank and on two: an epoch's samples are put together."""

from __future__ import annotations

import pytest

from benchmarks.gpu import ddp


def test_a_sample_that_is_missing_or_twice_there_ends_the_run():
    with pytest.raises(RuntimeError, match="an epoch of 3 samples had 3, 2 different ones"):
        ddp.check_union([{"seen": [0, 1], "samples": 3}, {"seen": [1], "samples": 3}])
