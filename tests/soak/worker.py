"""A process that runs simulated trainings one after another."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import os
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random

import torch

from tests.pools import own_threads
from tests.soak.drawn import offered
from tests.soak.training import Training

MOST_GROWTH = 2**30
"""Bytes of memory that a process may take more at the end than after its first trainings."""


def wait_until_free(device: torch.device) -> None:
    """Wait until neither threads nor the GPU's memory are in use any more; AssertionError after 20 s."""
    end = time.monotonic() + 20
    while True:
        gc.collect()
        left = own_threads()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch._C._cuda_clearCublasWorkspaces()
            if held := torch.cuda.memory_allocated(device):
                left.append(f"{held} bytes of the GPU's memory")
        if not left:
            return
        assert time.monotonic() < end, f"left after all loaders were closed: {left}"
        time.sleep(0.01)


def in_use() -> tuple[int, int]:
    """Open descriptors, and bytes of memory that are no file's."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return len(os.listdir("/proc/self/fd")), int(status.split("RssAnon:")[1].split()[0]) * 1024


def work(number: int, folder: Path, device_name: str, chosen: argparse.Namespace) -> None:
    """Run trainings until the time is over, and write down what came of them."""
    faulthandler.enable()
    torch.set_num_threads(1)
    device = torch.device(device_name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backends = offered(folder, device)
    until = time.monotonic() + chosen.seconds
    seeds = Random(f"{chosen.seed} {number}")
    counts: Counter[str] = Counter()
    before = in_use()
    wrong = ""
    while not wrong and time.monotonic() < until:
        seed = seeds.getrandbits(48) if chosen.training is None else chosen.training
        doing = {"training": seed, "device": device_name}
        try:
            training = Training(seed, folder, device, backends)
            doing["options"] = repr(training.options)
            (folder / f"doing-{number}.json").write_text(json.dumps(doing))  # for the parent, if this process hangs
            training.run(until if chosen.training is None else float("inf"))
            counts += training.counts
            counts["trainings"] += 1
            del training
            wait_until_free(device)
            faulthandler.cancel_dump_traceback_later()
        except Exception:
            wrong = f"{doing}\n{traceback.format_exc()}"
        if counts["trainings"] == 3:
            before = in_use()
        if chosen.training is not None:
            break
    descriptors, memory = (now - then for now, then in zip(in_use(), before, strict=True))
    if not wrong and (descriptors > 4 or memory > MOST_GROWTH):
        wrong = f"{descriptors} descriptors and {memory} bytes of memory more than after the first trainings"
    found = {"counts": counts, "wrong": wrong, "descriptors": descriptors, "memory": memory}
    found["backends"] = [repr(backend) for backend in backends]
    (folder / f"found-{number}.json").write_text(json.dumps(found))
