"""The options of a simulated training, drawn from a random generator."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch

from gdsload import BackendUnavailableError, BlockShuffle, Bounce, DataLoader, Gds, Memory, PerSample
from gdsload.transforms import DecodeImage
from tests.soak.formula import IMAGE, KINDS

ON_HOST = ["auto", "host"]
ON_GPU = ["auto", "bounce", "mapped", Bounce(pinned="2MiB", threads=3), Gds(compat=True), Gds("kvikio", compat=True)]

LASTING: dict[str, list[Any]] = {
    "tail": ["share", "pad", "drop"],
    "with_index": [False, True],
    "with_real": [False, False, True],
}
CHANGING: dict[str, list[Any]] = {
    "verify": ["off", "sample", "all"],
    "ahead": [True] * 5 + [False],
    "reuse_buffers": [False] * 5 + [True],
    "mmap": [None],
    "prefetch": ["1MiB", "16MiB", "128MiB"],
    "registered": [0, "20MiB", "1GiB"],
    "vram": ["8MiB", "128MiB"],
}

FIXED = {"arena": "128MiB", "ram": "64MiB"}
"""Budgets that windows of all lanes need, and with which four loaders fit twice into 6 GiB of a GPU."""


def offered(folder: Path, device: torch.device) -> list[Any]:
    """The backends that give a batch on a device."""
    found: list[Any] = []
    given: dict[str, Any] = {"device": device, "memory": Memory(prefetch="16MiB", **FIXED)}
    for backend in ON_HOST + ON_GPU[1:] if device.type == "cuda" else ON_HOST:
        with suppress(BackendUnavailableError), DataLoader(folder / "rows", 8, backend=backend, **given) as one:
            next(iter(one))
            found.append(backend)
    return found


def inverted(batch: dict[str, Any], name: str) -> dict[str, Any]:
    """The transform of batches or samples: a field more, with all bits of another."""
    return {**batch, "inverted": ~batch[name]}


def draw_options(random: Random, name: str) -> dict[str, Any]:
    """The options of loaders that stay the same in a training."""
    shuffle: Any = random.choice([False, "full", "block", "own blocks"])
    if shuffle == "own blocks" or (shuffle == "block" and name == "pictures"):  # whose windows are large
        block = random.choice([4, 16])
        shuffle = BlockShuffle(block, block * random.randint(1, 4), random.choice([1, 3, 8]))
    found = {option: random.choice(values) for option, values in LASTING.items()}
    found |= {"shuffle": shuffle, "seed": random.getrandbits(64)}
    if name == "ragged":
        found["ragged"] = random.choice(["jagged", "offsets", "padded", "varlen"])
    if name == "jpegs":
        found["decode"] = {"image": DecodeImage(size=IMAGE)}
    change = partial(inverted, name=next(iter(KINDS[name][0])))
    way = random.choice([None, None, "transform", "device_transform", "sample_transform"])
    if way == "sample_transform" and name not in ("ragged", "jpegs"):
        found[way] = PerSample(change, workers=2)
    elif way and way != "sample_transform":
        found[way] = change
    return found


def draw_way(random: Random, backends: list[Any], options: dict[str, Any], on_gpu: bool) -> dict[str, Any]:
    """The options that may be others after a resume: how bytes travel, where they are kept, and how far ahead."""
    backend = random.choice(ON_HOST if "sample_transform" in options else backends)
    in_vram = on_gpu and backend != "host" and "sample_transform" not in options
    caches = ["pagecache", "none", *["auto", "vram", "vram"] * in_vram]
    if "decode" in options and not in_vram:
        caches.append("ram")
    found = {option: random.choice(values) for option, values in CHANGING.items()}
    memory = {name: found.pop(name) for name in ("prefetch", "registered", "vram")}
    if backend == "mapped":
        memory["registered"] = "1GiB"  # with less, a batch may need more than may be registered
    if "ragged" in options:
        found["reuse_buffers"] = False
    if backend in ON_HOST:
        found["mmap"] = random.choice([None, False])
    return {**found, "backend": backend, "cache": random.choice(caches), "memory": Memory(**memory, **FIXED)}
