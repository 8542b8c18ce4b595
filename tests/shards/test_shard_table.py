"""Sample ids to shards and rows."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gdsload
from gdsload import FormatError, LoaderClosedError
from gdsload.backends.host import HostBackend
from gdsload.engine.loaded_rows import RowMap
from gdsload.engine.runs import lie_in_runs, runs_of
from gdsload.shards import shard_table
from gdsload.shards.catalog import open_catalog
from gdsload.shards.identity import ShardSource
from gdsload.shards.reads import Extents
from gdsload.shards.shard_table import ShardTable


@settings(derandomize=True, max_examples=100)
@given(
    st.one_of(
        st.lists(st.integers(0, 6), min_size=1, max_size=8),
        st.tuples(st.integers(0, 6), st.integers(1, 6), st.integers(0, 8)).map(
            lambda found: [found[0]] * found[1] + [found[2]]
        ),
        st.lists(st.integers(5, 60), min_size=1, max_size=8),
    ),
    st.sampled_from([0, 2, 4, 14]),
    st.randoms(use_true_random=False),
)
@example([3, 3, 3], 14, None)
@example([3, 3, 4], 14, None)
@example([3, 3, 0], 14, None)
@example([0, 0, 3], 14, None)
@example([0], 14, None)
def test_every_sample_is_found_once(counts, ranges_bits, random):
    """Shards of one size, of several, empty ones, and a last one that is shorter or longer; ids in any order.

    With few ranges of ids there are more samples in each, and shards that only a search finds.
    """
    opened = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_table, "_RANGES_BITS", ranges_bits)
        table = ShardTable(_files(counts), SimpleNamespace(columns={}))
    table.ensure_open = opened.append
    expected = [(file, row) for file, count in enumerate(counts) for row in range(count)]
    ids = list(range(len(expected)))
    if random is not None:
        random.shuffle(ids)
    found = table.locate(np.array(ids, np.int64))
    assert list(zip(found.file.tolist(), found.row.tolist(), strict=True)) == [expected[number] for number in ids]
    assert opened[0] is found.file


def _files(counts):
    return SimpleNamespace(sources=[ShardSource("", count) for count in counts])


def _table(counts, row_bytes):
    """Shards of one field of so many bytes a row, which begins at another offset in each."""
    table = ShardTable(
        _files(counts), SimpleNamespace(columns={"x": SimpleNamespace(row_bytes=row_bytes, ragged=False)})
    )
    table.begin["x"][:] = np.arange(len(counts)) * 64 + 128
    table.asked = []
    table.ensure_open = lambda files: table.asked.extend(files.tolist())
    return table


@settings(derandomize=True, max_examples=100)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(0, 8), st.integers(1, 50), st.data())
def test_runs_are_the_bytes_of_their_samples(counts, row_bytes, run_bytes, data):
    total = sum(counts)
    if not total:
        return
    bounds = []
    for _ in range(data.draw(st.integers(1, 3))):
        first = data.draw(st.integers(0, total - 1))
        bounds.append((first, data.draw(st.integers(first + 1, total))))
    table = _table(counts, row_bytes)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gdsload.shards.shard_table._RUN_BYTES", run_bytes)
        extents, samples = table.runs("x", np.array(bounds))
    each, _ = table.extents("x", table.locate(np.concatenate([np.arange(*run) for run in bounds])))
    if row_bytes:
        first = table.first_ids("x", extents)
        assert [int(one) + at for one, count in zip(first, samples, strict=True) for at in range(count)] == [
            number for run in bounds for number in range(*run)
        ]
    assert min(samples) > 0
    assert (extents.nbytes == np.array(samples) * row_bytes).all()
    assert (extents.nbytes <= max(run_bytes, row_bytes)).all()
    assert {column.dtype for column in (extents.file, extents.offset, extents.nbytes)} == {np.dtype(np.int64)}
    assert set(table.asked) == set(extents.file.tolist()), "empty shards need not be there"
    runs = zip(extents.offset.tolist(), samples.tolist(), strict=True)
    assert [offset + at * row_bytes for offset, count in runs for at in range(count)] == each.offset.tolist()
    assert np.repeat(extents.file, samples).tolist() == each.file.tolist()


@settings(derandomize=True, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), min_size=1, max_size=8), st.integers(0, 9))
def test_rows_of_runs(parts, row_bytes):
    """Parts that come one after the other, and such that do not."""
    addresses, at = [], 1000
    for gap, count in parts:
        addresses.append(at + gap)
        at += gap + count * row_bytes
    counts = [count for _, count in parts]
    expected = [begin + at * row_bytes for begin, count in zip(addresses, counts, strict=True) for at in range(count)]
    rows = RowMap.of_runs(np.array(addresses, np.int64), np.array(counts), row_bytes)
    assert rows.addresses.dtype == np.int64
    assert rows.lengths is None
    assert rows.addresses.tolist() == expected


@settings(derandomize=True, max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(1, 300)), min_size=1, max_size=6),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_ids_as_runs(runs, mixed, random):
    """Some runs, which may overlap, in order or all mixed up."""
    ids = [first + at for first, count in runs for at in range(count)]
    if mixed:
        random.shuffle(ids)
    bounds = runs_of(np.array(ids), 1024)
    if bounds is None:
        assert len(ids) > 1
        return
    assert [number for first, stop in bounds for number in range(first, stop)] == ids
    assert len(bounds) == 1 or len(bounds) - 1 < len(ids) / 64


@pytest.mark.parametrize(("ids", "row_bytes", "expected"), [
    (range(1), 1, True),
    (range(400), 4096, True),
    ([*range(200, 400), *range(200)], 4096, True),
    ([*range(200, 400), *range(200)], 100, False),  # of short rows it takes longer runs
    ([at + 50 * run for run in range(9) for at in range(7)], 150_000, True),  # few samples are long runs of large ones
    ([at + 50 * run for run in range(9) for at in range(6)], 150_000, False),
    (range(0, 800, 2), 4096, False),
    (range(400, 0, -1), 2**20, False),
    ([5] * 100, 4096, False),
    ([], 4096, False),
])  # fmt: skip
def test_what_lies_in_runs_as_it_comes(ids, row_bytes, expected):
    assert lie_in_runs(np.array(ids, np.int64), row_bytes) == expected


# --- opening ---


@pytest.mark.parametrize("mapped", [True, False])
def test_shards_are_opened_on_first_use(folder, mapped):
    catalog = open_catalog(str(folder))
    table = ShardTable.of(catalog.sources, catalog.stored, mapped=mapped)
    table.locate(np.array([14, 7, 15]))
    assert np.flatnonzero(table.opened).tolist() == np.flatnonzero(table.files.opened).tolist() == [3, 7]
    assert table.rows["x"][[3, 7]].tolist() == [2, 2]
    assert table.span(7, ["x"]) == (int(table.begin["x"][7]), int(table.begin["x"][7]) + 24)
    assert table.span(7, []) == (0, 0)
    table.files.close()
    for _ in range(2):
        with pytest.raises(LoaderClosedError, match="the shards were closed"):
            table.locate(np.array([7]))


def test_a_backend_reads_what_no_table_has_opened(folder, monkeypatch):
    """No header is parsed for that: what bytes mean is not its business."""
    catalog = open_catalog(str(folder))
    table = ShardTable.of(catalog.sources, catalog.stored, mapped=True)
    monkeypatch.setattr(shard_table, "read_header", None)
    backend = HostBackend(table.files)
    pending = backend.read(Extents(np.array([3]), np.array([8]), np.array([2])))
    pending.completion.wait()
    assert ctypes.string_at(int(pending.addresses[0]), 2) == b'{"'
    assert (table.files.opened.sum(), table.opened.sum()) == (1, 0)
    backend.close()


def test_offsets_are_asked_for_until_all_of_a_shard_may_be_touched(tmp_path, monkeypatch):
    """Only that shard's, and not before its last page is populated."""
    count = 2**17 // 8 + 1000  # offsets of two pieces
    with gdsload.ShardWriter(tmp_path / "d", {"x": gdsload.Field("uint8", (None,))}, shard_bytes=9 * count) as out:
        out.write_batch({"x": (np.zeros(2 * count, np.uint8), np.arange(2 * count + 1))})
    catalog = open_catalog(str(tmp_path / "d"))
    assert len(catalog.sources) > 1
    table, asked = ShardTable.of(catalog.sources, catalog.stored, mapped=True), []
    ensure = table.files.ensure
    monkeypatch.setattr(table.files, "ensure", lambda found: asked.append(found) or ensure(found))

    def offsets_of(*rows):
        asked.clear()
        extents, _ = table.extents("x", table.locate(np.array(rows)))
        assert (extents.nbytes == 1).all()
        return [len(found) for found in asked]

    first, last = 0, catalog.sources[0].samples - 1
    assert offsets_of(first) == offsets_of(first) == [1]  # its last piece is not populated yet
    assert offsets_of(last) == [1]
    assert offsets_of(first, last) == []
    assert offsets_of(first, last + 1) == [2]
    table.files.close()


@pytest.mark.parametrize("ragged", [True, False])
def test_nothing_is_asked_of_the_guard_once_all_fields_are_there(tmp_path, ragged):
    """Headers and padding are never touched, and nobody makes sure of them."""
    value = np.zeros((300_000 if ragged else 100_000, 4), np.uint8)
    field = gdsload.Field("uint8", (None, 4) if ragged else value.shape)
    with gdsload.ShardWriter(tmp_path / "d", {"x": field}) as out:
        out.write({"x": value})
    catalog = open_catalog(str(tmp_path / "d"))
    table = ShardTable.of(catalog.sources, catalog.stored, mapped=True)
    extents, _ = table.extents("x", table.locate(np.array([0])))
    whole = table.files.whole(0)
    assert table.files.missing(whole) is not None
    table.files.ensure(extents)
    assert table.files.missing(whole) is None
    table.files.close()


def test_a_shard_of_another_length_than_the_index_says(folder):
    """One that got it after the dataset was opened."""
    table = ShardTable.of(
        [ShardSource(str(folder / "4.safetensors"), file_bytes=7)], open_catalog(str(folder)).stored, mapped=True
    )
    with pytest.raises(FormatError, match="bytes, but the index says 7"):
        table.ensure_open(np.array([0]))
    table.files.close()
