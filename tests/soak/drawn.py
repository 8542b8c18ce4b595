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


def offered(folder: Path, device: torch.device) -> list[Any]:
    """The backends that give a batch on a device."""
    found: list[Any] = []
    for backend in ON_HOST + ON_GPU[1:] if device.type == "cuda" else ON_HOST:
        with suppress(BackendUnavailableError), DataLoader(folder / "rows", 8, device=device, backend=backend) as one:
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
    found = {
        "shuffle": shuffle,
        "seed": random.getrandbits(64),
        "tail": random.choice(["share", "pad", "drop"]),
        "with_index": random.random() < 0.5,
        "with_real": random.random() < 0.3,
    }
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
    memory = Memory(
        prefetch=random.choice(["1MiB", "16MiB", "128MiB"]),
        arena=random.choice(["128MiB", "256MiB"]),
        registered="1GiB" if backend == "mapped" else random.choice([0, "20MiB", "1GiB"]),
        vram=random.choice(["8MiB", "256MiB"]),
        ram="64MiB",
    )
    return {
        "backend": backend,
        "cache": random.choice(caches),
        "mmap": random.choice([None, False]) if backend in ON_HOST else None,
        "verify": random.choice(["off", "off", "all"]),
        "ahead": random.random() < 0.85,
        "reuse_buffers": "ragged" not in options and random.random() < 0.15,
        "memory": memory,
    }
