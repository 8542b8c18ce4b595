"""Reads of several drives: each run is of one, and where they must be mixed, they take turns."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import gdsload
from gdsload.shards.drive_order import DriveOrder, file_system_of
from gdsload.shards.identity import ShardSource
from gdsload.shards.local_files import LocalFiles
from gdsload.shards.reads import Extents

SETTINGS = settings(derandomize=True, max_examples=150)
OF = st.lists(st.sampled_from("abcd"), max_size=12)


@SETTINGS
@given(OF)
def test_files_of_one_drive_follow_one_another(lies_on):
    order = DriveOrder(lies_on)
    assert order.count == max(len(set(lies_on)), 1)
    assert [lies_on[file] for file in order.firsts()] == list(dict.fromkeys(lies_on))
    assert [lies_on.index(one) for one in lies_on] == [order.of.tolist().index(number) for number in order.of.tolist()]
    if order.count == 1:
        assert order.turns is None
        return
    assert sorted(order.turns.tolist()) == list(range(len(lies_on)))
    drives = [lies_on[file] for file in np.argsort(order.turns).tolist()]
    assert len(list(itertools.groupby(drives))) == order.count


@SETTINGS
@given(OF.filter(bool), st.lists(st.tuples(st.integers(0, 11), st.integers(0, 50)), max_size=60), st.integers(1, 100))
def test_shares_are_of_one_drive_and_of_about_so_many_bytes(lies_on, reads, about):
    order = DriveOrder(lies_on)
    files = np.array([file % len(lies_on) for file, _ in reads], np.int64)
    if order.turns is not None:
        files = files[np.argsort(order.turns[files], kind="stable")]
    found = Extents(files, np.zeros(len(files), np.int64), np.array([nbytes for _, nbytes in reads], np.int64))
    parts = order.shares(found, about)
    assert [index for _, part in parts for index in part] == list(range(len(files)))
    for drive, part in parts:
        assert {int(order.of[files[index]]) for index in part} == {drive}
        assert found.nbytes[part.start + 1 : part.stop].sum() <= about
    whole = -(-int(found.nbytes.sum()) // about)
    assert len(parts) <= whole + order.count


@SETTINGS
@given(OF.filter(bool), st.lists(st.integers(0, 11), max_size=60))
def test_drives_take_turns(lies_on, files):
    order = DriveOrder(lies_on)
    files = np.array([file % len(lies_on) for file in files], np.int64)
    chosen = order.interleaved(files)
    assert sorted(chosen.tolist()) == list(range(len(files)))
    drives = order.of[files[chosen]]
    assert order.alone(files) == (len(set(drives.tolist())) <= 1)
    done = np.zeros(order.count, np.int64)
    total = np.bincount(drives, minlength=order.count)
    for drive in drives.tolist():
        done[drive] += 1
        unfinished = done < total
        assert np.ptp(done[unfinished]) <= 1 if unfinished.any() else True
        assert done[drive] - (done[unfinished].min() if unfinished.any() else done[drive]) <= 1
    for drive in range(order.count):  # of one drive they stay in order
        mine = chosen[drives == drive]
        assert (np.diff(mine) > 0).all()


def test_drives_are_told_apart_by_their_file_systems(tmp_path):
    """Where it is not known before a file is opened, it is a drive of its own."""
    with gdsload.ShardWriter(tmp_path / "d", shard_bytes=1) as writer:
        for number in range(3):
            writer.write({"x": number})
    sources = gdsload.ShardDataset(tmp_path / "d").sources
    files = LocalFiles(sources, mapped=False)
    assert (files.drives.count, files.drives.turns) == (1, None)
    files.close()
    assert [file_system_of(source) for source in sources] == [(tmp_path / "d").stat().st_dev] * 3
    files = LocalFiles([*sources, ShardSource(sources[0].path)], mapped=False)
    assert files.drives.of.tolist() == [0, 0, 0, 1]
    files.close()
