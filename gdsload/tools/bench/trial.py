"""One timed run, and the summary of several."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any, cast

import torch

from gdsload.loader.epoch import Epoch
from gdsload.loader.loader import DataLoader
from gdsload.tools.bench.bench_plan import BenchPlan
from gdsload.tools.bench.routes import Route, sample_bytes, synchronise


def run_trial(route: Route, loader: DataLoader, plan: BenchPlan, epoch: int, *, whole: bool = False) -> dict[str, Any]:
    """Run an epoch, or as much of it as the plan allows, and take the time.

    The clock runs from asking for the iterator until the last batch is on the device. That includes opening what a
    loader needs for its first batch, unless it is open already. Bytes by path are those that were moved meanwhile: with
    those read ahead, if a trial ends before its epoch, and without gaps between samples.

    Args:
        route: the contender.
        loader: its loader.
        plan: what is measured.
        epoch: which epoch, so that all contenders of a round have the same order.
        whole: run the whole epoch, even if the plan has a limit.
    """
    loader.set_epoch(epoch)
    moved, stats = loader.backend.bytes_by_path, loader.stats
    before = (stats.host_wait_s, stats.samples, stats.batches)
    limit_s = float("inf") if whole or plan.seconds is None else plan.seconds
    first_s, nbytes, complete = 0.0, 0, False
    synchronise(plan.device)
    started = time.perf_counter()
    with closing(cast("Epoch", iter(loader))) as batches:
        for batch in batches:
            arrived = route.arrive(batch, plan)
            if not nbytes and not first_s:
                if plan.on_device:
                    torch.accelerator.current_stream(plan.device).synchronize()
                first_s = time.perf_counter() - started
            nbytes += sample_bytes(arrived)
            if time.perf_counter() - started >= limit_s:
                break
        else:
            complete = True
        synchronise(plan.device)
        seconds = time.perf_counter() - started
    return {
        "epoch": epoch,
        "whole_epoch": complete,
        "samples": stats.samples - before[1],
        "batches": stats.batches - before[2],
        "bytes": nbytes,
        "seconds": seconds,
        "gb_per_s": nbytes / seconds / 1e9,
        "first_batch_s": first_s,
        "wait_share": min((stats.host_wait_s - before[0]) / seconds, 1.0),
        "bytes_by_path": _difference(loader.backend.bytes_by_path, moved),
        "copied_bytes": nbytes if route.copies(plan) else 0,
        "backend": loader.backend.chosen,
        "reason": loader.backend.reason,
    }


def _difference(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    """The bytes moved between two readings of the counters, by path."""
    if before.keys() - after.keys():
        # cuFile's counters do not separate bytes by path, so all of them have a common name.
        return {"+".join(after): sum(after.values()) - sum(before.values())}
    found = {path: count - before.get(path, 0) for path, count in after.items()}
    return {path: count for path, count in found.items() if count}


def summarise(route: Route, trials: list[dict[str, Any]]) -> dict[str, Any]:
    """A summary of a contender's trials, for the record."""
    paths: dict[str, int] = {}
    for trial in trials:
        for path, count in trial["bytes_by_path"].items():
            paths[path] = paths.get(path, 0) + count
    numbers = ("gb_per_s", "first_batch_s", "wait_share")
    return {
        "contender": route.name,
        **{number: spread([trial[number] for trial in trials]) for number in numbers},
        "bytes_by_path": paths,
        "copied_bytes": sum(trial["copied_bytes"] for trial in trials),
        "trials": trials,
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    if len(values) == 1:
        return {"median": values[0], "q1": values[0], "q3": values[0]}
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "q1": q1, "q3": q3}
