"""Threads while the interpreter is taken down."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import gdsload
from gdsload import LoaderClosedError, threads


@pytest.fixture
def ending(monkeypatch):
    monkeypatch.setattr(threads, "_exiting", threading.Event())
    threads.note_exit()


@pytest.fixture
def loader(tmp_path):
    with gdsload.ShardWriter(tmp_path / "shards") as writer:
        writer.write_batch({"x": np.arange(100)})
    with gdsload.DataLoader(tmp_path / "shards", 10, device="cpu") as found:
        yield found


def test_nobody_is_kept_before(monkeypatch):
    monkeypatch.setattr(threads, "_exiting", threading.Event())
    began = time.monotonic()
    thread = threading.Thread(target=threads.stay_at_exit)
    thread.start()
    thread.join()
    assert time.monotonic() - began < threads._TAKEN_DOWN_S


@pytest.mark.usefixtures("ending")
def test_who_takes_it_down_is_not_kept(loader):
    assert sum(len(batch["x"]) for batch in loader) == 100
    loader.close()
    with pytest.raises(LoaderClosedError):
        next(iter(loader))


@pytest.mark.usefixtures("ending")
def test_others_stay_where_they_ask_for_a_batch_and_not_longer_than_somebody_can_wait(loader, monkeypatch):
    taken = []
    monkeypatch.setattr(threads, "_TAKEN_DOWN_S", 0.4)
    thread = threading.Thread(target=lambda: taken.append(next(iter(loader))), daemon=True)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    assert not taken
    thread.join(10)
    assert len(taken) == 1
