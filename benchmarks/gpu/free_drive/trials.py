"""One trial of a case over a simulated drive, and the comparison of its bytes over the drive at hand."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gdsload
from benchmarks.gpu.free_drive.cases import Case
from benchmarks.gpu.free_drive.drives import REAL
from benchmarks.gpu.limits import PinnedCopies
from benchmarks.gpu.suite.trial import cpu_s, moved, synchronise
from gdsload.shards.drive import Drive

__all__ = ["Length", "check", "link", "trial"]

_MOST_S = 6.0


@dataclass(frozen=True, slots=True)
class Length:
    """How long a trial is.

    Attributes:
        warm_s: seconds of full load before the clock runs.
        seconds: seconds that it runs at the least.
        nbytes: bytes of batches that come meanwhile at the least, unless they take more than 6 s: batches come in
            groups, and a trial should have some.
    """

    warm_s: float
    seconds: float
    nbytes: int


def _opened(case: Case, folder: Path, device: torch.device, drive: Drive, **more: Any) -> gdsload.DataLoader:
    """The loader of a case, over a dataset on this drive."""

    class OnDrive(gdsload.ShardDataset):
        """The dataset."""

    OnDrive.drive = drive
    return gdsload.DataLoader(OnDrive(folder), device=device, **case.options(), **more)


def _size(batch: dict[str, Any]) -> tuple[int, int]:
    """Bytes and rows of a batch."""
    found = batch["x"]
    return (found[0].nbytes, len(found[1]) - 1) if isinstance(found, tuple) else (found.nbytes, len(found))


def _endless(loader: gdsload.DataLoader) -> Generator[dict[str, Any], None, None]:
    while True:
        yield from loader


def trial(case: Case, folder: Path, device: torch.device, drive: Drive, length: Length) -> dict[str, Any]:
    """Read epoch after epoch for a while, by a new loader.

    The clock runs from one batch to a later one, after a warm-up under full load, and until the GPU has ended all work.
    """
    with _opened(case, folder, device, drive) as loader:
        stream, nbytes, rows = _endless(loader), 0, 0
        began = time.perf_counter()
        while time.perf_counter() - began < length.warm_s or nbytes < length.nbytes // 4:
            nbytes += _size(next(stream))[0]
        synchronise(device)
        paths, cpu, start = loader.backend.bytes_by_path, cpu_s(), time.perf_counter()
        nbytes, taken, batch = 0, 0.0, None
        while taken < length.seconds or (nbytes < length.nbytes and taken < _MOST_S):
            batch = next(stream)  # as in a `for` loop, the batch before lives until now
            size = _size(batch)
            nbytes, rows, taken = nbytes + size[0], rows + size[1], time.perf_counter() - start
        synchronise(device)
        taken = time.perf_counter() - start
        cpu, paths = cpu_s() - cpu, moved(paths, loader.backend.bytes_by_path)
        del batch
        stream.close()
    return {
        "bytes": nbytes,
        "rows": rows,
        "seconds": taken,
        "gb_s": nbytes / taken / 1e9,
        "rows_s": rows / taken,
        "cpu_s_per_gb": cpu / (nbytes / 1e9),
        "simulated_bytes_by_path": paths,
    }


def link(device: torch.device, seconds: float) -> dict[str, Any]:
    """P: copies out of pinned memory for a while, without any loader."""
    copies = PinnedCopies(device)
    copies.run(0)
    nbytes, start = 0, time.perf_counter()
    while (taken := time.perf_counter() - start) < seconds:
        nbytes += copies.run(2**31 if device.type == "cuda" else 0)
    return {"bytes": nbytes, "seconds": taken, "gb_s": nbytes / taken / 1e9}


def check(case: Case, folder: Path, device: torch.device) -> dict[str, Any]:
    """Compare every byte of an epoch over real files, untimed, with what the dataset says of the samples by index.

    Raises:
        RuntimeError: if one is wrong, or samples are missing or come twice.
    """
    reference, seen, nbytes = gdsload.ShardDataset(folder), [], 0
    with _opened(case, folder, device, REAL, with_index=True) as loader:
        for batch in loader:
            ids = batch["index"].cpu()
            found, expected = batch["x"], reference.read_batch(ids)["x"]
            pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
            for ours, theirs in pairs:
                if ours.shape != theirs.shape or not torch.equal(ours, theirs.to(device)):
                    raise RuntimeError(f"{case.name}: a batch is not what the files hold")
            seen.append(ids.numpy())
            nbytes += _size(batch)[0]
        paths = loader.backend.bytes_by_path
    if not np.array_equal(np.sort(np.concatenate(seen)), np.arange(len(reference))):
        raise RuntimeError(f"{case.name}: samples are missing or come twice")
    return {"samples": len(reference), "bytes": nbytes, "bytes_by_path": paths}
