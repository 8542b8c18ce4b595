"""The process of one contender; `benchmarks.serving` has the protocol.

Each has a process of its own, and so a CUDA context of its own, for the whole run.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.suite.cases import Case, Rows
from benchmarks.gpu.suite.contenders import Contender, Place, load
from benchmarks.gpu.suite.data import Stored
from benchmarks.gpu.suite.measures import run_measure
from benchmarks.gpu.suite.trial import check, cold_trial, hot_trial
from benchmarks.serving import serve


def _start(order: dict[str, Any]) -> tuple[Contender, dict[str, Any]]:
    plan, data = order["workload"], Path(order["source"])
    rows = [Rows(**{**found, "shape": tuple(found["shape"])}) for found in plan["rows"]]
    kind = load(order["name"])
    place = Place(
        folder=Path(order["folder"]),
        device=torch.device(plan["device"]),
        workers=plan["workers"],
        rows={each.name: Stored(each, data / each.name) for each in rows},
        own_samples=plan["own_samples"],
    )
    contender = kind(place)
    return contender, contender.about()


def _perform(contender: Contender, order: dict[str, Any]) -> dict[str, Any]:
    if order["op"] == "measure":
        return run_measure(contender, order["name"], order["rows"], order["arguments"])
    case = Case.from_json(order["case"])
    if order["op"] == "prepare":
        began = time.perf_counter()
        contender.prepare(case)
        return {"seconds": time.perf_counter() - began}
    if order["op"] == "files":
        return {"files": [str(path) for path in contender.files(case)]}
    if order["op"] == "check":
        return check(contender, case)
    if case.cold:
        return cold_trial(contender, case, order["cold_s"])
    return hot_trial(contender, case, order["warm_s"], order["seconds"])


if __name__ == "__main__":
    serve(_start, _perform)
