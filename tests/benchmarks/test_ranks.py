"""Ranks beside one alone: a rank that fails ends the run."""

from __future__ import annotations

import pytest

from benchmarks.gpu import ranks


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_run_with_its_error(tmp_path):
    with (
        ranks.started(ranks.Rank, tmp_path, "cpu", 1) as started,
        pytest.raises(RuntimeError, match="there is no dataset here"),
    ):
        started.tell("open", ranks.CASES[0], 0.01)
