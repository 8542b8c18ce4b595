"""A generated dataset, for a benchmark without one."""

from __future__ import annotations

import os
import shutil

import numpy as np

from gdsload.errors import DiskFullError, OptionError
from gdsload.shards.format.schema import Field
from gdsload.shards.writer import ShardWriter
from gdsload.system.units import format_bytes

NAME = "gdsload-bench"
_STEP_BYTES = 64 * 2**20


def make_dataset(folder: str | os.PathLike[str], num_bytes: int, row_bytes: int = 150_000) -> str:
    """Write a dataset of whole random rows into a new folder in `folder`, which may be missing, and return its path.

    Raises:
        OptionError: if there is not one row.
        DiskFullError: if there is no room, before anything is written.
        OutputExistsError: if there is such a folder already.
    """
    rows = num_bytes // row_bytes if row_bytes > 0 else 0
    if rows < 1:
        raise OptionError(f"a dataset of {num_bytes} bytes has no row of {row_bytes}", remedy="Make it larger.")
    os.makedirs(folder, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        need = f"it needs {format_bytes(num_bytes)}, and {format_bytes(free)} are free"
        raise DiskFullError(f"there is no room for the dataset: {need}", file=os.fspath(folder))
    path, step = os.path.join(folder, NAME), max(_STEP_BYTES // row_bytes, 1)
    random = np.random.Generator(np.random.SFC64(0))
    with ShardWriter(path, {"x": Field("uint8", (row_bytes,))}) as writer:
        for low in range(0, rows, step):
            some = min(step, rows - low)
            writer.write_batch({"x": np.frombuffer(random.bytes(some * row_bytes), np.uint8).reshape(some, row_bytes)})
    return path
