"""Shards of a folder, extents of them as tests write them, (file, offset, bytes), and what backends read of those."""

import ctypes

from hypothesis import strategies as st

from gdsload.backends.base import ShardAddresses
from gdsload.backends.host import HostBackend
from gdsload.shards.catalog import open_catalog
from gdsload.shards.local_files import LocalFiles

SIZES = [100_003, 8_000, 1, 2_500_000]
"""The rows, of three bytes each, of the shards in the fixture `folder`."""


class Reachable(HostBackend):
    """A host backend whose mapped shards are within reach from the first."""

    addressable = True

    def __init__(self, files):
        super().__init__(files, threads=2)
        self.found = ShardAddresses(files.base, self.note_moved)

    def addresses(self):
        return self.found


def files_in(folder, *, mapped):
    return LocalFiles(open_catalog(str(folder)).sources, mapped=mapped)


def within(sizes, wanted):
    """The extents, cut at the ends of files of these sizes."""
    lows = [min(offset, sizes[file]) for file, offset, _ in wanted]
    return [(file, low, min(nbytes, sizes[file] - low)) for (file, _, nbytes), low in zip(wanted, lows, strict=True)]


@st.composite
def some_extents(draw):
    """Extents of the shards in the fixture `folder`, which may reach beyond the ends of those."""
    found = []
    for _ in range(draw(st.integers(0, 20))):
        file = draw(st.integers(0, len(SIZES) - 1))
        length = SIZES[file] * 3 + 60
        offset = draw(st.integers(0, length) | st.sampled_from([0, 4095, 4096, length]))
        found.append((file, offset, draw(st.sampled_from([0, 1, 8, 4096, 1_100_000]) | st.integers(0, 5000))))
    return found


def bytes_of(landing, wanted):
    """The bytes of each extent, once they have landed."""
    landing.completion.wait()
    assert landing.completion.landed
    found = zip(landing.addresses.tolist(), wanted, strict=True)
    return [ctypes.string_at(address, nbytes) for address, (_, _, nbytes) in found]
