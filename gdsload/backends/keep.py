"""Whole shards read into the page cache while the first epoch reads its batches, so that later epochs find them there.

Each page is read once, by whichever comes first. Most of a drive's time goes to whole shards, which are read in
sequence; so the first epoch takes about as long as it takes to read the dataset in sequence, whatever its order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from functools import partial

import numpy as np

from gdsload.backends.mapped import registered_in_process
from gdsload.errors import LoaderClosedError
from gdsload.shards.files import Files
from gdsload.shards.page_cache import file_is_resident
from gdsload.system.numa import stay_on
from gdsload.system.pool import Future, Pool
from gdsload.system.probe.tree import Tree
from gdsload.system.ram import memory_room

AFTER_S = 0.3
"""Seconds before the first shard is read whole: a loader's first batches should not wait for that."""
_READ_BYTES = 4 * 2**20
AT_ONCE, AT_ONCE_BESIDE_DECODING = 4, 2
"""Shards that are read at once: each in order, as the kernel reads ahead of that. Fewer where the drive is not much
faster than the decoder: images that are read only after the drive is done are decoded while it is idle."""
_SHARE, _SPARE = 0.5, 0.1
"""Shares of the memory that may be taken: what is kept at most; and what is left free, in any case."""


def keep(
    files: Files,
    first: int,
    *,
    at_once: int,
    over: Callable[[float], bool],
    after_s: float = 0.0,
    then: Callable[[int], str] = lambda _file: "",
    processors: Collection[int] | None = None,
) -> str:
    """Read the shards that the page cache keeps, and return when they are there.

    The one that comes last after the first wanted one is read first: an epoch in order then has its own reads at the
    other end. What the epoch has read itself is noted meanwhile. A shard that cannot be read is left out: its error is
    raised where a batch wants it. Those that are not kept after all are taken out of `files.kept`.

    `over` waits up to some seconds for the end, and returns whether it is over. The first shard is read after `after_s`
    seconds, for which those that are there already do not wait. `then` is called with each shard that is in memory; it
    says why no further one is to be read, or returns an empty text. Returns why it ended before all were there, or an
    empty text.
    """
    spare, kept = int(_SPARE * _room()), np.flatnonzero(files.kept)
    pending = deque(np.roll(kept, -int(kept.searchsorted(first))).tolist())
    reading = deque[tuple[int, Future]]()
    trouble, paused = "", False
    with closing(Pool(at_once, "gdsload-keep", partial(stay_on, processors))) as readers:
        while (pending or reading) and not (over(0) or trouble):
            while pending and len(reading) < at_once:
                there = resides(files, pending[0])
                if not (there or paused):
                    if reading:  # shards that are there, which are not to wait
                        break
                    paused = True
                    if over(after_s):
                        return ""
                file = pending.popleft() if there else pending.pop()
                there = there or resides(files, file)
                if not there and _room() < spare + files.sources[file].length():
                    files.kept[[file, *pending, *(number for number, _ in reading)]] = False
                    return "the machine, or the control group, is short of memory"
                reading.append((file, readers.run([partial(_bring_in, files, file, over, read=not there)])))
            file, read = reading.popleft()
            with suppress(Exception):
                read.wait()
                trouble = then(file)
    return trouble


def _bring_in(files: Files, file: int, over: Callable[[float], bool], *, read: bool) -> None:
    """Read a shard into the page cache, unless it is there, and map its pages: registering it takes less then."""
    memory = memoryview(bytearray(_READ_BYTES if read else 0))
    whole, nbytes = files.whole(file), files.length(file)
    for offset in range(0, nbytes, _READ_BYTES):
        if over(0):
            raise LoaderClosedError("the loader was closed")
        if read:
            files.read_into(file, offset, memory[: nbytes - offset])
        files.populate(file, offset, min(_READ_BYTES, nbytes - offset), whole)


def resides(files: Files, file: int) -> bool:
    """Return whether a shard can be opened and is in memory."""
    with suppress(Exception):
        files.ensure_open(np.array([file]))
        return file_is_resident(files, file)
    return False


def _room(tree: Tree | None = None) -> int:
    """Bytes that may still be taken; those that this process has registered look as if they could be, and cannot."""
    return max((memory_room(tree or Tree()) or 0) - registered_in_process(), 0)


def default_register_bytes(tree: Tree | None = None) -> int:
    """Half of the memory that may still be taken, in bytes: registered pages cannot be reclaimed."""
    return int(_SHARE * _room(tree))
