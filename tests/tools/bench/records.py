"""Made-up records of benchmarks: what `run_bench` returns, without a measurement."""

import copy

SPREAD = (0.97, 1.02, 1.0, 0.99, 1.03, 1.0, 0.98, 1.01, 1.0)
"""Turns of a quiet machine, as multiples of their median."""
AGAIN = (1.0, 0.99, 1.01, 1.0, 1.005, 0.995, 1.0, 1.01, 0.985)

NAMES = {"read": "read + .to", "kvikio": "kvikio", "torch": "torch DataLoader"}


def row(name, gb_per_s, *, asked="", cpu=0.06, spread=AGAIN, batches=900, **more):
    """A row of a table: a backend of the loader's, or a name of `NAMES`."""
    kind = name if name in NAMES else "gdsload"
    return {
        "name": NAMES.get(name, name), "kind": kind, "detail": "", "asked": (asked or name).split(),
        "backend": "" if name in NAMES else name, "reason": "chosen by evidence",
        "gb_per_s": {"median": gb_per_s, "q1": 0.99 * gb_per_s, "q3": 1.01 * gb_per_s},
        "samples_per_s": gb_per_s * 6640, "batch_ms": {"p50": 17 / gb_per_s, "p99": 40 / gb_per_s},
        "cpu_s_per_gb": cpu, "drive_share": 1.0, "share_of_limit": gb_per_s / 11.9,
        "warning": "", "bytes_by_path": {},
        "turns": [{"gb_per_s": gb_per_s * one, "seconds": 1.5, "batches": batches, "bytes": 15e9} for one in spread],
    } | more  # fmt: skip


def table(*rows, state="cold"):
    return {"state": state, "checked": "0 of 40503 pages in the page cache, by mincore", "rows": list(rows)}


COLD = table(
    row("gds", 11.6, cpu=0.004, spread=SPREAD, bytes_by_path={"gds-p2p": 3 * 10**9}),
    row("bounce", 11.4, asked="auto bounce", cpu=0.061, bytes_by_path={"bounce-direct": 2 * 10**9, "host": 10**8}),
    row("kvikio", 6.2, cpu=0.11), row("read", 2.3, cpu=0.52),
    row("torch", 1.9, cpu=3.9, detail="16 workers, pinned, __getitems__ (its best form here)"),
)  # fmt: skip
HOT = table(
    row("mapped", 52.3, asked="auto mapped", cpu=0.006, share_of_limit=0.95, drive_share=0.0),
    row("bounce", 44.0, cpu=0.058, share_of_limit=0.8, drive_share=0.0),
    row("gds", 11.6, cpu=0.004, share_of_limit=0.21),
    row("torch", 2.1, cpu=3.7, share_of_limit=0.04, drive_share=0.0),
    state="hot",
)  # fmt: skip

GPU_MACHINE = {
    "schema": 1, "when": "2026-11-28T08:00:00Z", "command": "gdsload bench /data/imagenet --shuffle full",
    "machine": {
        "cpu": "AMD EPYC 9654", "cores": 112, "ram_bytes": 2**40, "kernel": "6.8.0", "gpu": "NVIDIA H100 80GB HBM3",
        "gpu_driver": "570.86", "load": 0.7,
    },
    "versions": {"gdsload": "0.1.0", "python": "3.11.7", "torch": "2.13.0", "cuda": "13.0"},
    "dataset": {
        "path": "/data/imagenet", "digest": "0123", "samples": 1281167, "bytes": 193 * 2**30, "shards": 754,
        "schema": {}, "file_system": "ext4", "drive": "Samsung PM1743", "read_bytes": 150528,
        "memory_bytes": 2**40, "fits_memory": True,
    },
    "conditions": {
        "device": "cuda:0", "batch_size": 108, "batch_bytes": 2**24, "shuffle": "full", "turns": 9, "turn_s": 1.5, "hot_turn_s": 0.5,
        "ramp_s": 0.5, "budget_s": 120.0, "step_ms": None, "workers": 16, "unavailable": {},
        "notes": ["caches in the drive or below a hypervisor are not counted"],
    },
    "verified": [{"row": "gds", "samples": 512, "bytes": 2**26}],
    "limits": {
        "drive": {
            "gb_per_s": 11.9, "read_bytes": 150528, "depth": 64, "p50_ms": 0.5, "p99_ms": 0.9,
            "sequential_gb_per_s": 13.6, "from": "O_DIRECT reads of 64 threads",
        },
        "drive_why": None, "link": {"gb_per_s": 55.1}, "memory": {"gb_per_s": 12.0},
        "noise": {"cold": 0.021, "hot": 0.01},
    },
    "cold_start": {
        "state": "cold",
        "epochs": [
            {"seconds": 18.2, "gb_per_s": 11.4, "first_batch_s": 0.41},
            {"seconds": 4.1, "gb_per_s": 50.5, "first_batch_s": 0.002},
            {"seconds": 3.9, "gb_per_s": 52.4, "first_batch_s": 0.002},
        ],
    },
    "cold": COLD, "hot": HOT, "stopped": None,
}  # fmt: skip

CPU_MACHINE = {
    "machine": {
        "cpu": "Intel Xeon", "cores": 2, "ram_bytes": 24 * 2**30, "kernel": "6.18", "gpu": None, "load": 0.4
    },
    "versions": {"gdsload": "0.1.0", "python": "3.11.7", "torch": "2.13.0+cpu", "cuda": "none"},
    "conditions": {"device": "cpu"},
    "limits": {
        "drive": {"gb_per_s": 0.88, "read_bytes": 77824, "depth": 16, "p99_ms": 8.8, "sequential_gb_per_s": 0.86},
        "link": None, "memory": {"gb_per_s": 4.1},
    },
    "cold": table(
        row("host", 0.61, asked="auto host", cpu=0.63, share_of_limit=0.69),
        row("torch", 0.21, cpu=1.9, share_of_limit=0.24),
    ),
    "hot": table(row("host", 2.8, asked="auto host", cpu=0.4, share_of_limit=0.68), state="hot"),
}  # fmt: skip


def made_record(*changes):
    """The record of a GPU machine with a fast drive, where GDS changes nothing, after these changes.

    A change is a tree of what is merged into it: dicts into dicts, but for tables, which replace tables.
    """
    found = copy.deepcopy(GPU_MACHINE)
    for change in changes:
        _merge(found, copy.deepcopy(change))
    return found


def _merge(tree, change):
    for key, value in change.items():
        if isinstance(value, dict) and isinstance(tree.get(key), dict) and "rows" not in value:
            _merge(tree[key], value)
        else:
            tree[key] = value
