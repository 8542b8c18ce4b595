"""Extents of shards as tests write them, (file, offset, bytes), and the bytes that a backend reads of them."""

import ctypes

import numpy as np

from gdsload.shards.reads import Extents


def extents_of(wanted):
    columns = zip(*wanted, strict=True) if wanted else [[]] * 3
    return Extents(*(np.array(column, np.int64) for column in columns))


def within(sizes, wanted):
    """The extents, cut at the ends of files of these sizes."""
    lows = [min(offset, sizes[file]) for file, offset, _ in wanted]
    return [(file, low, min(nbytes, sizes[file] - low)) for (file, _, nbytes), low in zip(wanted, lows, strict=True)]


def bytes_of(landing, wanted):
    """The bytes of each extent, once they have landed."""
    landing.completion.wait()
    assert landing.completion.landed
    found = zip(landing.addresses.tolist(), wanted, strict=True)
    return [ctypes.string_at(address, nbytes) for address, (_, _, nbytes) in found]
