"""Sample ids to shards and rows."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gdsload.engine.table import SampleTable


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    st.one_of(
        st.lists(st.integers(0, 6), min_size=1, max_size=8),
        st.tuples(st.integers(0, 6), st.integers(1, 6), st.integers(0, 8)).map(
            lambda found: [found[0]] * found[1] + [found[2]]
        ),
    ),
    st.randoms(use_true_random=False),
)
@example([3, 3, 3], None)
@example([3, 3, 4], None)
@example([3, 3, 0], None)
@example([0, 0, 3], None)
@example([0], None)
def test_every_sample_is_found_once(counts, random):
    """Shards of one size, of several, empty ones, and a last one that is shorter or longer; ids in any order."""
    opened = []
    table = SampleTable(SimpleNamespace(ensure_open=opened.append), np.array(counts))
    expected = [(file, row) for file, count in enumerate(counts) for row in range(count)]
    ids = list(range(len(expected)))
    if random is not None:
        random.shuffle(ids)
    found = table.locate(np.array(ids, np.int64))
    assert list(zip(found.file.tolist(), found.row.tolist(), strict=True)) == [expected[number] for number in ids]
    assert opened[0] is found.file
