"""Sample ids to shards and rows."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gdsload.engine.stage import FieldRows, _is_run
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


class _Shards(SimpleNamespace):
    """Shards of one field of so many bytes a row, which begins at another offset in each."""

    def ensure_open(self, files):
        self.opened += files.tolist()


def _shards(counts, row_bytes):
    field = SimpleNamespace(row_bytes=row_bytes, ragged=False)
    begin = np.arange(len(counts)) * 64 + 128
    return _Shards(schema={"x": field}, begin={"x": begin}, opened=[])


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(0, 8), st.integers(1, 50), st.data())
def test_runs_are_the_bytes_of_their_samples(counts, row_bytes, run_bytes, data):
    total = sum(counts)
    if not total:
        return
    first = data.draw(st.integers(0, total - 1))
    stop = data.draw(st.integers(first + 1, total))
    files = _shards(counts, row_bytes)
    table = SampleTable(files, np.array(counts))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gdsload.engine.table._RUN_BYTES", run_bytes)
        extents, samples = table.runs("x", first, stop)
    each, _ = table.extents("x", table.locate(np.arange(first, stop)))
    assert sum(samples) == stop - first
    assert min(samples) > 0
    assert (extents.nbytes == np.array(samples) * row_bytes).all()
    assert (extents.nbytes <= max(run_bytes, row_bytes)).all()
    assert {column.dtype for column in (extents.file, extents.offset, extents.nbytes)} == {np.dtype(np.int64)}
    assert set(extents.file.tolist()) <= set(files.opened)
    offsets = [
        offset + at * row_bytes for offset, count in zip(extents.offset, samples, strict=True) for at in range(count)
    ]
    assert offsets == each.offset.tolist()
    assert np.repeat(extents.file, samples).tolist() == each.file.tolist()


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), min_size=1, max_size=8), st.integers(0, 9))
def test_rows_of_runs(runs, row_bytes):
    """Runs that lie one behind the other, and such that do not."""
    addresses, at = [], 1000
    for gap, count in runs:
        addresses.append(at + gap)
        at += gap + count * row_bytes
    counts = [count for _, count in runs]
    rows = FieldRows.of_runs(np.array(addresses, np.int64), counts, row_bytes)
    expected = [
        address + at * row_bytes for address, count in zip(addresses, counts, strict=True) for at in range(count)
    ]
    assert rows.addresses.tolist() == expected
    assert rows.addresses.dtype == np.int64
    assert rows.lengths is None


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([5], True),
        ([0, 1, 2], True),
        ([7, 8], True),
        ([0, 2, 1, 3], False),
        ([0, 2], False),
        ([1, 0], False),
        ([0, 0], False),
    ],
)
def test_what_is_a_run(ids, expected):
    assert _is_run(np.array(ids)) == expected
