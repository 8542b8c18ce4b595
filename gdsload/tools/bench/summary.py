"""A row of the record, of its turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gdsload.tools.bench.bench_plan import LEAST_BATCHES
from gdsload.tools.bench.rows import Row
from gdsload.tools.bench.turns import spread, totals

_FROM_DRIVE_SHARE = 0.9
"""Share of the bytes below which the drive's speed limits a row no more."""


def noise_of(rows: Sequence[dict[str, Any]]) -> float | None:
    """The share by which the control differs from the row that it repeats, the first; None without a control."""
    control = next((row for row in rows if row["kind"] == "control"), None)
    if control is None or rows[0] is control or not rows[0]["gb_per_s"]["median"]:
        return None
    return abs(float(control["gb_per_s"]["median"] / rows[0]["gb_per_s"]["median"]) - 1)


def summary(
    row: Row, taken: Sequence[tuple[dict[str, Any], list[float]]], limit: tuple[str, float] | None, *, cold: bool
) -> dict[str, Any]:
    """A row of a table, for the record.

    `taken` has its turns, at least one, and the seconds between the batches of each; `limit` the name and GB/s of the
    limit, or None if it is not known.
    """
    turns = [turn for turn, _ in taken]
    found = totals(turns)
    rate = spread([turn["gb_per_s"] for turn in turns])
    between = np.concatenate([np.array(times) for _, times in taken]) * 1e3
    p50, p99 = np.percentile(between, [50, 99]).tolist() if len(between) else (None, None)
    from_drive = _drive_share(found, cold=cold)
    share, warnings = _share_of_limit(rate["median"], limit, from_drive if cold else None)
    if (least := min(turn["batches"] for turn in turns)) < LEAST_BATCHES:
        warnings.insert(0, f"too short: a turn had {least} batch{'es' * (least != 1)}, and {LEAST_BATCHES} are needed")
    return {
        "name": row.name,
        "kind": row.kind,
        "detail": row.detail,
        "asked": row.asked,
        "backend": row.backend,
        "reason": row.reason,
        "gb_per_s": rate,
        "samples_per_s": found["samples"] / found["seconds"] if found["seconds"] else 0.0,
        "batch_ms": {"p50": p50, "p99": p99} if len(between) else None,
        "cpu_s_per_gb": found["cpu_s"] / (found["bytes"] / 1e9) if found["bytes"] else None,
        "drive_share": from_drive,
        "share_of_limit": share,
        "warning": "; ".join(warnings),
        "bytes_by_path": found["bytes_by_path"],
        "turns": turns,
    }


def _drive_share(found: dict[str, Any], *, cold: bool) -> float | None:
    """The share of the bytes that came from a drive; None if it is not known."""
    nbytes, read = found["bytes"], found["drive_bytes"]
    if read is None or not nbytes or (cold and not read):  # some file systems, of networks say, do not count
        return None
    return float(read / nbytes)


def _share_of_limit(
    rate: float, limit: tuple[str, float] | None, from_drive: float | None
) -> tuple[float | None, list[str]]:
    """The share of the limit; None, and why, where it is none."""
    if limit is None:
        return None, []
    name, most = limit
    if name == "drive" and from_drive is not None and from_drive < _FROM_DRIVE_SHARE:
        return None, [f"{1 - from_drive:.0%} came from the page cache, because of the kernel's read-ahead"]
    if rate > most:
        return None, [f"it is faster than the measured limit, {most:.3g} GB/s of the {name}"]
    return rate / most, []
