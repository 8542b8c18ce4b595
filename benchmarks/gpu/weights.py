"""Weights of a model onto a GPU: `gdsload.safe_open` beside the other loaders of safetensors files.

    python -m benchmarks.gpu.weights --out benchmarks/results/gpu-weights.json --bytes 8GiB --rounds 5

writes a model in bfloat16 with the shapes of a transformer, in several files, and has each contender load all of its
tensors, in a fresh process for each trial and with all pages of the files in the page cache. The clock runs from the
call to the moment when all tensors are on the device; torch is imported and the device in use before that. After each
trial every byte of the tensors is compared with the files.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib
import importlib.metadata
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch

import gdsload
from benchmarks.folders import existing_folder
from benchmarks.record import machine, public, ratio, spread, versions
from benchmarks.residency import keep_warm
from gdsload.system.units import parse_bytes

__all__ = ["CONTENDERS", "main"]

Tensors = dict[str, torch.Tensor]

_FILE_BYTES = 4 * 2**30
_PIECE_BYTES = 512 * 2**20
_TRIAL_S = 300


def _gdsload(files: list[str], device: str) -> Tensors:
    with gdsload.safe_open(files, device=device) as opened:
        return opened.get_tensors()


def _gdsload_each(files: list[str], device: str) -> Tensors:
    return {name: tensor for file in files for name, tensor in gdsload.load_file(file, device=device).items()}


def _safetensors(files: list[str], device: str) -> Tensors:
    return {name: tensor for file in files for name, tensor in safetensors.torch.load_file(file, device=device).items()}


def _safe_open(files: list[str], device: str) -> Tensors:
    found: Tensors = {}
    for file in files:
        with safetensors.safe_open(file, "pt", device=device) as opened:
            found |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    return found


def _mapped(files: list[str], device: str) -> Tensors:
    with gdsload.safe_open(files, device=device, backend="mapped") as opened:
        return opened.get_tensors()


def _fastsafetensors(files: list[str], device: str) -> Tensors:
    fast: Any = importlib.import_module("fastsafetensors")
    os.environ["FASTSAFETENSORS_ODIRECT"] = "0"  # by default it reads around the page cache
    with fast.fastsafe_open(files, device=device, nogds=True) as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


def _instanttensor(files: list[str], device: str) -> Tensors:
    instant: Any = importlib.import_module("instanttensor")
    with instant.safe_open(files, "pt", torch.device(device), backend=instant.BackendPolicy.BUFFERED) as opened:
        return dict(opened.tensors())


def _by_hand(files: list[str], device: str) -> Tensors:
    """Register 512 MiB of a mapped file, copy them, and take them back: what a careful user would write."""
    found: Tensors = {}
    runtime: Any = torch.cuda.cudart()
    for file in files:
        with open(file, "rb") as opened:
            memory = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
        host = torch.from_numpy(np.frombuffer(memory, np.uint8))
        whole = torch.empty(len(host), dtype=torch.uint8, device=device)
        for low in range(0, len(host), _PIECE_BYTES):
            piece = host[low : low + _PIECE_BYTES]
            if code := int(runtime.cudaHostRegister(piece.data_ptr(), len(piece), 8)):  # cudaHostRegisterReadOnly
                raise RuntimeError(f"cudaHostRegister says {code}")
            whole[low : low + len(piece)].copy_(piece, non_blocking=True)
            torch.cuda.synchronize()
            runtime.cudaHostUnregister(piece.data_ptr())
        begin = 8 + int.from_bytes(memory[:8], "little")
        header = json.loads(memory[8:begin])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            low, high = entry["data_offsets"]
            found[name] = whole[begin + low : begin + high].view(torch.bfloat16).view(entry["shape"])
    return found


CONTENDERS: dict[str, tuple[str, str, Callable[[list[str], str], Tensors]]] = {
    "gdsload": ("gdsload.safe_open, all files", "gdsload", _gdsload),
    "gdsload-each": ("gdsload.load_file, file by file", "gdsload", _gdsload_each),
    "gdsload-mapped": ("gdsload.safe_open, backend mapped", "gdsload", _mapped),
    "safetensors": ("safetensors.torch.load_file", "safetensors", _safetensors),
    "safe-open": ("safetensors.safe_open, get_tensor", "safetensors", _safe_open),
    "fastsafetensors": ("fastsafetensors, without GDS, buffered reads", "fastsafetensors", _fastsafetensors),
    "instanttensor": ("InstantTensor, buffered reads", "instanttensor", _instanttensor),
    "by-hand": ("512 MiB of a mapping registered, copied, and so on", "torch", _by_hand),
}
"""Name to title, package, and what loads all tensors of some files."""


def write_model(folder: Path, nbytes: int) -> list[str]:
    """Files of a model of about so many bytes, with the shapes of one of 8 billion parameters, or smaller ones."""
    hidden = 4096 if nbytes >= 2**30 else 64
    shapes: list[tuple[int, ...]] = [(hidden, hidden), (hidden // 4, hidden), (hidden // 4, hidden), (hidden, hidden)]
    shapes += [(hidden * 7 // 2, hidden), (hidden * 7 // 2, hidden), (hidden, hidden * 7 // 2), (hidden,), (hidden,)]
    rng = np.random.default_rng(0)
    files: list[str] = []
    tensors: Tensors = {}
    written = held = layer = 0
    while written < nbytes:
        for number, shape in enumerate(shapes):
            random = rng.integers(0, 2**16, shape, np.uint16).view(np.int16)
            tensors[f"model.layers.{layer}.{number}.weight"] = torch.from_numpy(random).view(torch.bfloat16)
            written, held = written + random.nbytes, held + random.nbytes
        layer += 1
        if held >= min(_FILE_BYTES, nbytes // 2) or written >= nbytes:
            files.append(str(folder / f"model-{len(files):05}.safetensors"))
            safetensors.torch.save_file(tensors, files[-1])
            tensors, held = {}, 0
    return files


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def _trial(name: str, files: list[str], device: str) -> dict[str, Any]:
    """In a process of its own: load all, twice, say how long that took, and compare every byte with the files."""
    load = CONTENDERS[name][2]
    torch.ones(1, device=device).add_(1)
    seconds = []
    for _ in range(2):
        found: Tensors = {}
        _wait(device)
        began = time.perf_counter()
        found = load(files, device)
        _wait(device)
        seconds.append(time.perf_counter() - began)
    wrong = 0
    for key, source in _safetensors(files, "cpu").items():
        there = source.view(torch.int16).to(device)
        wrong += key not in found or not torch.equal(found[key].view(torch.int16), there)
    return {"bytes": sum(tensor.nbytes for tensor in found.values()), "seconds": seconds, "wrong": wrong}


def _asked(name: str, files: list[str], device: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.gpu.weights", "--trial", name, "--device", device, "--files", *files]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_TRIAL_S, env=os.environ, check=False)
    if ended.returncode:
        raise RuntimeError((ended.stderr.strip().splitlines() or [f"ended by {ended.returncode}"])[-1])
    answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    if answer["wrong"]:
        raise RuntimeError(f"{answer['wrong']} tensors are not the files'")
    return answer


def _link(device: str) -> float:
    """GB/s of copies of pinned memory to the device."""
    if torch.device(device).type != "cuda":
        return float("nan")
    host = torch.empty(2**28, dtype=torch.uint8).pin_memory()
    there = torch.empty_like(host, device=device)
    rates = []
    for _ in range(12):
        torch.cuda.synchronize()
        began = time.perf_counter()
        there.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        rates.append(len(host) / 1e9 / (time.perf_counter() - began))
    return statistics.median(rates)


def _version(package: str) -> str:
    if package == "gdsload":
        return gdsload.__version__
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _measured(options: argparse.Namespace, files: list[str]) -> tuple[list[dict[str, Any]], int, float]:
    """Each contender's trials; bytes of the model; and the least share of pages that was found in the page cache."""
    entries = {
        name: {"name": name, "title": CONTENDERS[name][0], "version": _version(CONTENDERS[name][1]), "trials": []}
        for name in options.contenders
    }
    paths = [Path(file) for file in files]
    size, resident = 0, 1.0

    for number in range(options.rounds):
        alive = [entry for entry in entries.values() if "failed" not in entry]
        for entry in alive[number % max(len(alive), 1) :] + alive[: number % max(len(alive), 1)]:
            resident = min(resident, keep_warm(paths).fraction)
            try:
                answer = _asked(entry["name"], files, options.device)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                entry["failed"] = str(error)[:300]
                continue
            size = answer["bytes"]
            first, again = (size / 1e9 / one for one in answer["seconds"])
            entry["trials"].append({"gb_s": first, "again_gb_s": again})
            print(f"  round {number + 1}: {entry['name']} {first:.1f}, {again:.1f} GB/s", file=sys.stderr, flush=True)
    return list(entries.values()), size, resident


def _run(options: argparse.Namespace, files: list[str]) -> dict[str, Any]:
    entries, size, resident = _measured(options, files)
    done = {entry["name"]: [trial["gb_s"] for trial in entry["trials"]] for entry in entries if "failed" not in entry}
    for entry in entries:
        if entry["name"] in done:
            entry["gb_s"] = spread(done[entry["name"]])
            entry["again_gb_s"] = spread([trial["again_gb_s"] for trial in entry["trials"]])
            if "safetensors" in done:
                entry["to_safetensors"] = ratio(done[entry["name"]], done["safetensors"])
    return {
        "format": 1,
        "small": options.small,
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "command": public(sys.argv),
        "machine": machine(torch.device(options.device)),
        "versions": versions(),
        "bytes": size,
        "files": len(files),
        "resident": resident,
        "link_gb_s": _link(options.device),
        "contenders": entries,
    }


def render(record: dict[str, Any]) -> str:
    """The table of a record."""
    where = record["machine"]
    lines = [
        f"{where.get('gpu', where['cpu'])}, {where['cores']} cores;",
        f"torch {record['versions']['torch']}; {record['date'][:10]}.",
        f"{record['bytes'] / 1e9:.1f} GB of bfloat16 in {record['files']} files,",
        f"{record['resident']:.0%} of their pages in the page cache; the link: {record['link_gb_s']:.1f} GB/s.",
        "Median (quartiles) of interleaved trials, each in a fresh process; after each, every byte compared.",
        "",
        "| loader | GB/s | to safetensors, round by round | once more in the same process, GB/s |",
        "| --- | --- | --- | --- |",
    ]
    for entry in record["contenders"]:
        title = f"{entry['title']} {entry['version']}"
        if "failed" in entry or "gb_s" not in entry:
            lines.append(f"| {title} | failed: {entry.get('failed', 'no trial')[:80]} | | |")
            continue
        cells = [_spread(entry[key], 1) for key in ("gb_s", "again_gb_s")]
        beside = _spread(entry["to_safetensors"], 2) if "to_safetensors" in entry else ""
        lines.append(f"| {title} | {cells[0]} | {beside} | {cells[1]} |")
    return "\n".join(lines) + "\n"


def _spread(found: dict[str, float], digits: int) -> str:
    return f"{found['median']:.{digits}f} ({found['q1']:.{digits}f}–{found['q3']:.{digits}f})"


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.weights", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="where the record goes")
    parser.add_argument("--bytes", default="8GiB", help="of the model, about (default: 8GiB)")
    parser.add_argument("--rounds", type=int, default=5, help="trials of each contender (default: 5)")
    parser.add_argument("--device", default="cuda:0", help="where tensors go (default: cuda:0)")
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--work-dir", type=existing_folder, help="where the files go (default: the temporary folder)")
    parser.add_argument("--small", action="store_true", help="a smoke test of kilobytes: its numbers mean nothing")
    parser.add_argument("--trial", help=argparse.SUPPRESS)
    parser.add_argument("--files", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.trial:
        print(json.dumps(_trial(options.trial, options.files, options.device)))
        return 0
    with tempfile.TemporaryDirectory(prefix="gdsload-weights-", dir=options.work_dir) as folder:
        record = _run(
            options, write_model(Path(folder), 2**18 if options.small else parse_bytes(options.bytes, "--bytes"))
        )
    print(render(record))
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if any("failed" in entry for entry in record["contenders"] if entry["name"].startswith("gdsload")) else 0


if __name__ == "__main__":
    sys.exit(main())
