"""One trial of a case over a simulated drive, and the comparison of its bytes over the drive at hand."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gdsload
from benchmarks.gpu.free_drive.cases import Case
from benchmarks.gpu.free_drive.drives import Drive, real
from benchmarks.gpu.limits import PinnedCopies
from benchmarks.gpu.suite.trial import cpu_s, moved, synchronise

__all__ = ["Length", "check", "link", "trial"]


@dataclass(frozen=True, slots=True)
class Length:
    """The length of a trial.

    Attributes:
        seconds: whole epochs are read until these are over.
        warm_s: how long the epoch before them may take. If it takes longer, the trial is a part of it,
        most_s: of so many seconds, unless it ends before.
    """

    seconds: float
    warm_s: float = 1.0
    most_s: float = 4.0


def _opened(case: Case, folder: Path, device: torch.device, drive: Drive, **more: Any) -> gdsload.DataLoader:
    """The loader of a case, over a dataset on this drive."""

    class OnDrive(gdsload.ShardDataset):
        """The dataset."""

    OnDrive.open_files = drive.files
    options = {**case.options(), "backend": drive.backend(case.backend)}
    return gdsload.DataLoader(OnDrive(folder), device=device, **options, **more)


def _size(batch: dict[str, Any]) -> tuple[int, int]:
    """Bytes and rows of a batch."""
    found = batch["x"]
    return (found[0].nbytes, len(found[1]) - 1) if isinstance(found, tuple) else (found.nbytes, len(found))


@dataclass(slots=True)
class _Came:
    """The bytes and rows that have come, and the seconds that they took.

    Attributes:
        nbytes: bytes of batches.
        rows: samples.
        seconds: seconds.
    """

    nbytes: int = 0
    rows: int = 0
    seconds: float = 0.0

    def until(self, stream: Iterator[dict[str, Any]], most_s: float) -> _Came | None:
        """Read an epoch to its end, or until a batch comes after some seconds.

        Batches come in groups. A wait for the first batch of one is a wait for all of them: that batch is not counted
        here, but begins what is counted next.

        Returns:
            That batch; None at the end of the epoch.
        """
        start, late = time.perf_counter(), None
        for batch in stream:  # the batch before lives until the next one is there
            size = _size(batch)
            if time.perf_counter() - start > most_s:
                late = _Came(*size)
                break
            self.nbytes, self.rows = self.nbytes + size[0], self.rows + size[1]
        self.seconds += time.perf_counter() - start
        return late


def trial(case: Case, folder: Path, device: torch.device, drive: Drive, length: Length) -> dict[str, Any]:
    """Read whole epochs for a while, by a new loader that has read one before; until the GPU has ended all work.

    Of a slow loader it is a part of its first epoch, from one group of batches to a later one.
    """
    with _opened(case, folder, device, drive) as loader:
        stream, whole = iter(loader), 0
        came = _Came().until(stream, length.warm_s)
        paths, cpu, stats = loader.backend.bytes_by_path, cpu_s(), replace(loader.stats)
        if came is None or came.until(stream, length.most_s) is None:
            # To the end of an epoch come batches, too, that were begun before.
            synchronise(device)
            paths, cpu, came, stats = loader.backend.bytes_by_path, cpu_s(), _Came(), replace(loader.stats)
            while came.seconds < length.seconds:
                came.until(iter(loader), math.inf)
                whole += 1
        ended = time.perf_counter()
        synchronise(device)
        came.seconds += time.perf_counter() - ended
        cpu, paths = cpu_s() - cpu, moved(paths, loader.backend.bytes_by_path)
        stats = loader.stats.since(stats)
    return {
        "bytes": came.nbytes,
        "rows": came.rows,
        "whole_epochs": whole,
        "seconds": came.seconds,
        "gb_s": came.nbytes / came.seconds / 1e9,
        "rows_s": came.rows / came.seconds,
        "cpu_s_per_gb": cpu / (came.nbytes / 1e9),
        "reads_waited_for": stats.read_s / came.seconds,
        "gathering": stats.gather_s / came.seconds,
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

    Their indices are another loader's with the same options: one that hands them out may make batches in another way.

    Raises:
        RuntimeError: if one is wrong, or samples are missing or come twice.
    """
    reference, seen, nbytes = gdsload.ShardDataset(folder), [], 0
    drive = real(case.drives, one_queue=case.one_queue)
    indexed = _opened(case, folder, device, drive, with_index=True)
    with indexed, _opened(case, folder, device, drive) as loader:
        for known, batch in zip(indexed, loader, strict=True):
            ids = known["index"].cpu()
            found, expected = batch["x"], reference.read_batch(ids)["x"]
            pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
            for ours, theirs in pairs:
                if ours.shape != theirs.shape or not torch.equal(ours, theirs.to(ours.device)):
                    raise RuntimeError(f"{case.name}: a batch is not what the files hold")
            seen.append(ids.numpy())
            nbytes += _size(batch)[0]
        paths = loader.backend.bytes_by_path
    if not np.array_equal(np.sort(np.concatenate(seen)), np.arange(len(reference))):
        raise RuntimeError(f"{case.name}: samples are missing or come twice")
    return {"samples": len(reference), "bytes": nbytes, "bytes_by_path": paths}
