"""Rooms whose tests write thousands of small files import this fixture into their conftest.py."""

import os

import pytest


@pytest.fixture(scope="module", autouse=True)
def no_sync():
    """Nobody pulls the plug, so that syncing would only cost time; that it is asked for is seen by who looks on.

    A module that takes files out of the page cache, where pages stay that are not written yet, has a `no_sync` of its
    own that does nothing.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield
