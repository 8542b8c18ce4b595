"""Many reads by few calls of cuFile: its batch API, of which numpy fills in the parameters.

Where cuFile reads through memory of the host, each read under way has a slab of it, and there are few: by default 128
of 4 KiB, 64 of 1 MiB and 64 of 16 MiB (cufile.json, posix_pool_slab_size_kb and posix_pool_slab_count). A thread that
submits a read with no slab left waits for one for ever, as slabs come back with the status that the same thread would
ask for next: so it was with a second batch, and with one of more than 64 reads of 4 KiB to 1 MiB (cuFile 1.15 in its
compat mode; other modes could not be tried). So there is one batch at a time, of no more reads than there are slabs,
and the drive has nothing to do for a moment between two of them.

Once a batch has failed its object makes no other. cuFile's cancel ends no read for certain, and nothing that we found
tells what becomes of reads under way when their batch is destroyed, as cuFile's own samples do with one that failed. So
only events are taken for the end of reads, and without them the memory of the reads is given up.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from gdsload.system.arrays import IntArray
from gdsload.system.memory import address_of

READS = 128
"""Reads of a batch (cufile.json, io_batchsize)."""
LONGEST_BYTES = 2**20
"""Bytes of the longest read of a batch."""
_SHORT_BYTES, _LONGER_READS = 4096, 64
"""A batch has at most so many reads of more than so many bytes."""

# cufile.h, CUfileIOParams_t and CUfileIOEvents_t, of 64-bit machines.
_PARAMS = np.dtype({
    "names": ["mode", "base", "offset", "position", "nbytes", "handle", "opcode", "cookie"],
    "formats": ["i4", "u8", "i8", "i8", "u8", "u8", "i4", "u8"],
    "offsets": [0, 8, 16, 24, 32, 40, 48, 56],
    "itemsize": 64,
})  # fmt: skip
_EVENTS = np.dtype({
    "names": ["cookie", "status", "nbytes"], "formats": ["u8", "i4", "u8"], "offsets": [0, 8, 16], "itemsize": 24
})  # fmt: skip
_BATCH, _READ, _COMPLETE = 1, 0, 0x10
"""CUFILE_BATCH of CUfileBatchMode_t, CUFILE_READ of CUfileOpcode_t, CUFILE_COMPLETE of CUfileStatus_t."""
_one_at_a_time = threading.Lock()


class ReadsUnderWayError(RuntimeError):
    """Reads may be under way for ever: the memory that they go to must neither be used again nor be freed."""


class CufileBatches:
    """Reads many parts of files into device memory. Its methods may be called from several threads.

    `cufile` is the module `cuda.bindings.cufile`, its driver open.
    """

    def __init__(self, cufile: Any) -> None:
        self._cufile = cufile
        self._batch: int | None = None
        self._failed, self._submitted = False, 0
        self._params, self._events = np.zeros(READS, _PARAMS), np.zeros(READS, _EVENTS)
        self._params["mode"], self._params["opcode"] = _BATCH, _READ

    def read(
        self, handles: IntArray, bases: IntArray, positions: IntArray, nbytes: IntArray, offsets: IntArray
    ) -> IntArray:
        """Make reads and wait for all of them; arrays of one length.

        `handles` are cuFile's, of files. `bases` has the address of the device memory that each read goes to, as it was
        registered, if it was, and `positions` the byte position in that memory. A read is of `LONGEST_BYTES` at most.
        Returns for each read the bytes that were read; 0 if it failed.

        Raises:
            ReadsUnderWayError: if cuFile failed to tell whether some of the reads have ended.
            Exception: what the bindings raise, if they take no batch; for any other one after it, from whichever
                thread, a RuntimeError. No read is under way then.
        """
        results = np.zeros(len(nbytes), np.int64)
        for low, high in batches_of(nbytes):
            part = slice(low, high)
            with _one_at_a_time:
                if self._failed:
                    raise RuntimeError("a batch of reads has failed before")
                try:
                    if self._batch is None:
                        self._batch = int(self._cufile.batch_io_set_up(READS))
                    params = self._params[: len(nbytes[part])]
                    params["base"], params["position"], params["offset"] = bases[part], positions[part], offsets[part]
                    params["nbytes"], params["handle"] = nbytes[part], handles[part].view(np.uint64)
                    self._read_batch(self._batch, params, results[part])
                except BaseException:
                    self._failed = True
                    with suppress(Exception):  # the failure is what is raised
                        self._destroy()
                    raise
        return results

    def _read_batch(self, batch: int, params: Any, results: IntArray) -> None:
        """Make the reads of one batch, and wait for them."""
        # No number is used again, so that no event is ever taken for another read's.
        first, self._submitted = self._submitted, self._submitted + len(params)
        params["cookie"] = np.arange(first, self._submitted)
        self._cufile.batch_io_submit(batch, len(params), address_of(params), 0)
        under_way = len(params)
        try:
            while under_way:
                under_way -= self._note_ended(batch, under_way, first, results)
        except BaseException as error:
            raise ReadsUnderWayError(f"cuFile does not tell when its reads have ended: {error}") from error

    def _note_ended(self, batch: int, under_way: int, first: int, results: IntArray) -> int:
        """Wait for all reads of a batch, or for some as cuFile likes it; returns how many have ended."""
        count = np.array([under_way], np.uint32)
        self._cufile.batch_io_get_status(batch, under_way, address_of(count), address_of(self._events), 0)
        ended = self._events[: int(count[0])]
        places = ended["cookie"].astype(np.int64) - first
        mine = (places >= 0) & (places < len(results))
        well = mine & (ended["status"] == _COMPLETE)
        results[places[well]] = ended["nbytes"][well].astype(np.int64)
        return int(np.count_nonzero(mine))

    def close(self) -> None:
        """Destroy the batch. No read may be under way; may be called twice."""
        with _one_at_a_time:
            self._destroy()

    def _destroy(self) -> None:
        batch, self._batch = self._batch, None
        if batch is not None:
            self._cufile.batch_io_destroy(batch)


def batches_of(nbytes: IntArray) -> Iterator[tuple[int, int]]:
    """Runs of reads of these lengths, each as long as a batch may be."""
    longer = np.concatenate([[0], np.cumsum(nbytes > _SHORT_BYTES)])
    low = 0
    while low < len(nbytes):
        # The first read beyond so many longer ones begins the next batch.
        high = min(low + READS, int(np.searchsorted(longer, longer[low] + _LONGER_READS, side="right")) - 1)
        yield low, min(high, len(nbytes))
        low = high
