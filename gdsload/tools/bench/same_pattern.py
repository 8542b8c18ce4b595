"""Command lines of fio and gdsio that read a dataset's shards as a benchmark's batches do."""

from __future__ import annotations

import os
from collections.abc import Sequence

_MOST_FILES = 8
_SECTOR = 4096
"""O_DIRECT needs whole sectors, and 4 KiB are whole ones on every drive."""


def commands(files: Sequence[str], read_bytes: int, *, shuffle: bool | str, device: str) -> dict[str, list[str]]:
    """The words of a command for each program.

    fio reads several of the largest shards by O_DIRECT; gdsio one, into the GPU by cuFile, or, with ``-x 2`` for
    ``-x 0``, by way of CPU memory; it is left out if the device is no GPU. Nothing is written.
    """
    sizes = {os.path.realpath(file): os.stat(file).st_size for file in files}
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:_MOST_FILES]
    least = sizes[largest[-1]]
    block = max(min(-(-read_bytes // _SECTOR), least // _SECTOR), 1) * _SECTOR
    names = ":".join(file.replace(":", "\\:") for file in largest)
    found = {
        "fio": [
            "fio", "--name=gdsload", f"--filename={names}",
            f"--rw={'randread' if shuffle else 'read'}", f"--bs={block // 1024}k", "--iodepth=64",
            "--ioengine=io_uring", "--direct=1", "--readonly", "--time_based", "--runtime=10",
        ]
    }  # fmt: skip
    if device.startswith("cuda"):
        found["gdsio"] = [
            "gdsio", "-f", largest[0], "-d", device.partition(":")[2] or "0", "-w", "32",
            "-s", f"{sizes[largest[0]] // 2**20}M", "-i", f"{block // 1024}K", "-I", "2" if shuffle else "0",
            "-x", "0", "-T", "10",
        ]  # fmt: skip
    return found
