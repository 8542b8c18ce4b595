"""A process that runs simulated trainings one after another."""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import json
import os
import time
from collections import Counter
from pathlib import Path
from random import Random

import torch

from tests.pools import own_threads
from tests.soak.drawn import offered
from tests.soak.simulation import Training, watch

MOST_GPU_MEMORY = 6 * 2**30
MOST_HELD = 4096
"""Bytes of the GPU's memory that may be in use when all loaders are closed: constants, which are made once."""
MOST_DESCRIPTORS, MOST_MEMORY = 4, 2**30
"""Descriptors that a process may have open, and bytes that it may take, at the end more than after its first trainings."""


def wait_until_free(device: torch.device) -> None:
    """Wait until neither threads nor the GPU's memory are in use any more; AssertionError after 20 s."""
    end = time.monotonic() + 20
    while True:
        gc.collect()
        left = own_threads()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch._C._cuda_clearCublasWorkspaces()
            if (held := torch.cuda.memory_allocated(device)) > MOST_HELD:
                left.append(f"{held} bytes of the GPU's memory")
        if not left:
            return
        assert time.monotonic() < end, f"left after all loaders were closed: {left}"
        time.sleep(0.01)


def in_use() -> tuple[int, int]:
    """Open descriptors, and bytes of memory that are no file's, without what malloc keeps for later."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return len(os.listdir("/proc/self/fd")), int(status.split("RssAnon:")[1].split()[0]) * 1024


def work(number: int, folder: Path, device_name: str, chosen: argparse.Namespace) -> None:
    """Run trainings until the time is over, and note in a file what is done; raises if anything is wrong."""
    counts: Counter[str] = Counter()
    grown = [0, 0]

    def note(doing: object) -> None:
        found = {"doing": repr(doing), "counts": counts, "descriptors": grown[0], "memory": grown[1]}
        (folder / f"{number}.json").write_text(json.dumps(found))

    note("the search for backends")
    faulthandler.enable()
    watch(240)  # cuFile is probed, at the same time by all processes
    torch.set_num_threads(1)
    device = torch.device(device_name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        share = MOST_GPU_MEMORY / torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(share, 1.0))  # other processes need some, too
    backends = offered(folder, device)
    gc.collect()
    gc.freeze()  # what has been imported is not looked through after each training
    random, before = Random(f"{chosen.seed} {number}"), in_use()
    begun = time.monotonic()
    until = begun + (float("inf") if chosen.training else chosen.seconds)
    for seed in chosen.training or iter(lambda: random.getrandbits(48), None):
        if time.monotonic() > until:
            break
        note({"training": seed})
        watch()
        training = Training(seed, folder, device, backends)
        note({"training": seed, **training.options})
        try:
            training.run(until)
        except Exception:
            note({"training": seed, **training.options})  # which may be others after a resume
            raise
        counts += training.counts
        counts["trainings"] += 1
        counts["seconds of training"] = round(time.monotonic() - begun)
        del training
        wait_until_free(device)
        before = in_use() if counts["trainings"] == 3 else before
    faulthandler.cancel_dump_traceback_later()
    grown = [now - then for now, then in zip(in_use(), before, strict=True)]
    note("the end")
    assert grown[0] <= MOST_DESCRIPTORS, f"{grown[0]} descriptors more than after the first trainings"
    assert grown[1] <= MOST_MEMORY, f"{grown[1]} bytes of memory more than after the first trainings"
