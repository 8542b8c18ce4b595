"""Rows by hand and their order."""

import pickle
import signal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gdsload
from gdsload.loader.loader import DataLoader
from gdsload.shards.reads import Extents
from gdsload.testing import fingerprint
from gdsload.tools.bench.by_hand import StoredRows, runs
from gdsload.tools.bench.rows import TorchRow, size_of


@pytest.fixture(scope="module")
def opened(bench_data):
    """Unpickled, as in torch's workers."""
    rows = [pickle.loads(pickle.dumps(StoredRows(bench_data, shared=shared))) for shared in (False, True)]
    yield rows
    for one in rows:
        one.close()


@settings(max_examples=20)
@given(ids=st.lists(st.integers(0, 699), min_size=1, max_size=60))
def test_rows_by_hand_are_those_of_the_dataset(bench_data, opened, ids):
    wanted = gdsload.ShardDataset(bench_data, mmap=False).read_batch(ids)
    for shared in (False, True):
        found = opened[shared].batch(np.array(ids))
        assert fingerprint(found) == fingerprint(wanted)
    nbytes = sum(1024 + 32 + 2 * (i % 5) + 2 * (i % 3) + i % 4 for i in ids)
    assert size_of(found) == (len(ids), nbytes)


def test_neighbours_are_one_run():
    extents = Extents(*np.array([[0, 10, 5], [0, 15, 5], [0, 20, 0], [1, 20, 3], [1, 30, 1]]).T)
    assert list(runs(extents)) == [(0, 10, 10), (1, 20, 3), (1, 30, 1)]
    assert list(runs(extents[2:3])) == []


@pytest.mark.parametrize("shuffle", [False, "full", "block"])
def test_rows_by_hand_come_in_the_order_of_the_loader(planned, shuffle):
    plan = planned(shuffle=shuffle, batch_size=64)
    with DataLoader(plan.path, 64, shuffle, device="cpu", fields=["label"]) as loader:
        loader.set_epoch(3)
        wanted = [batch["label"].tolist() for batch in loader]
    assert [ids.tolist() for ids in plan.ids(3)] == wanted


def test_ctrl_c_waits_while_the_server_of_the_workers_begins(planned, monkeypatch):
    masks = []
    monkeypatch.setattr(
        "multiprocessing.forkserver.ensure_running", lambda: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    )
    TorchRow(planned()).close()
    masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    assert [signal.SIGINT in mask for mask in masks] == [True, False]
