"""Many reads by few calls of cuFile: its batch API, of which numpy fills in the parameters.

cuFile has up to 128 reads under way at once in a process (cufile.json, io_batchsize). A second batch of as many waits
for room for ever, even if the thread that submits it would collect the first one next (cuFile 1.15 in its compat mode;
other modes could not be tried). So there is one batch at a time, and the drive has nothing to do for a moment between
two of them.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from gdsload.system.arrays import IntArray
from gdsload.system.memory import address_of

__all__ = ["READS", "CufileBatches"]

READS = 128
"""Reads of a batch."""

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


class CufileBatches:
    """Reads many parts of files into device memory. Its methods may be called from several threads.

    Args:
        cufile: the module `cuda.bindings.cufile`, its driver open.
    """

    def __init__(self, cufile: Any) -> None:
        self._cufile = cufile
        self._batch: int | None = None
        self._params, self._events = np.zeros(READS, _PARAMS), np.zeros(READS, _EVENTS)
        self._params["mode"], self._params["opcode"] = _BATCH, _READ

    def read(
        self, handles: IntArray, bases: IntArray, positions: IntArray, nbytes: IntArray, offsets: IntArray
    ) -> IntArray:
        """Make reads and wait for all of them; arrays of one length.

        Args:
            handles: cuFile's handles of files.
            bases: address of the device memory that each read goes to, as it was registered, if it was.
            positions: byte position in that memory.
            nbytes: how many bytes.
            offsets: byte offset in the file.

        Returns:
            For each read the bytes that were read; 0 if it failed.

        Raises:
            Exception: what the bindings raise, if cuFile takes no batch. No read is under way then.
        """
        results = np.zeros(len(nbytes), np.int64)
        for low in range(0, len(nbytes), READS):
            part = slice(low, low + READS)
            with _one_at_a_time:
                if self._batch is None:
                    self._batch = int(self._cufile.batch_io_set_up(READS))
                params = self._params[: len(nbytes[part])]
                params["base"], params["position"], params["offset"] = bases[part], positions[part], offsets[part]
                params["nbytes"], params["handle"] = nbytes[part], handles[part].view(np.uint64)
                params["cookie"] = np.arange(low, low + len(params))
                self._cufile.batch_io_submit(self._batch, len(params), address_of(params), 0)
                self._collect(self._batch, len(params), results)
        return results

    def _collect(self, batch: int, under_way: int, results: IntArray) -> None:
        """Wait for the reads of a batch."""
        while under_way:
            count = np.array([under_way], np.uint32)
            self._cufile.batch_io_get_status(batch, under_way, address_of(count), address_of(self._events), 0)
            ended = self._events[: int(count[0])]
            well = ended[ended["status"] == _COMPLETE]
            results[well["cookie"].astype(np.int64)] = well["nbytes"].astype(np.int64)
            under_way -= len(ended)

    def close(self) -> None:
        """Destroy the batch. No read may be under way; may be called twice."""
        with _one_at_a_time:
            batch, self._batch = self._batch, None
            if batch is not None:
                self._cufile.batch_io_destroy(batch)
