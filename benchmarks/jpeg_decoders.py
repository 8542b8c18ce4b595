"""What decodes most JPEGs a second on a GPU: calls at once, images of a call, pinned memory, and nvJPEG by itself.

    python -m benchmarks.jpeg_decoders --out benchmarks/results/jpeg-decoders.json

JPEGs of 500 x 375 pixels and about 57 KB. Each section runs in a process of its own, so that one that fails takes no
other with it, and what is measured is shown at once. The first sections decode the same bytes again and again and throw
the pixels away; the last one is the loader of `benchmarks.images` with other settings, in turns.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.util
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.images import OPTIONS, dali, loader, written
from benchmarks.nvjpeg import BatchedDecoder, engines
from benchmarks.record import machine, public, spread, versions
from gdsload.engine import epochs
from gdsload.engine.gpu import assemble_device, decode_images
from gdsload.engine.gpu.decode_images import JpegDecoder, best_jpeg_decoder
from gdsload.engine.gpu.resample_device import resample
from gdsload.engine.images.frames import Draws, frames

__all__ = ["main"]

_SIZE = (375, 500)
_SECONDS = 1.2
Call = Callable[[], int]
"""Decodes some images and waits for them; returns how many."""


def _rate(makers: Sequence[Callable[[], Call]]) -> dict[str, Any]:
    """Images a second, by several calls at once, each again and again by a thread of its own."""
    done, failed = [0] * len(makers), list[BaseException]()
    start, stop = threading.Barrier(len(makers) + 1), threading.Event()

    def again(number: int, make: Callable[[], Call]) -> None:
        try:
            call = make()
            call()
            start.wait()
            while not stop.is_set():
                done[number] += call()
        except BaseException as error:
            failed.append(error)
            start.abort()

    threads = [threading.Thread(target=again, args=each) for each in enumerate(makers)]
    for thread in threads:
        thread.start()
    try:
        start.wait()
        time.sleep(0.3)
        began, before = time.perf_counter(), sum(done)
        time.sleep(_SECONDS)
        found = (sum(done) - before) / (time.perf_counter() - began)
    except threading.BrokenBarrierError:
        found = 0.0
    stop.set()
    for thread in threads:
        thread.join()
    if failed:
        raise RuntimeError(str(failed[0]))
    return {"images_s": found}


def _tensors(data: list[bytes], *, pinned: bool) -> list[torch.Tensor]:
    found = [torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in data]
    return [one.pin_memory() for one in found] if pinned else found


def _by_decoder(decoder: JpegDecoder, data: list[torch.Tensor], size: int, device: torch.device) -> Call:
    stream = torch.cuda.Stream(device)
    some = [data[number % len(data)] for number in range(size)]

    def call() -> int:
        with torch.cuda.stream(stream):
            decoder.decode(some, device)
            stream.synchronize()
        return size

    return call


def _by_nvjpeg(
    data: list[torch.Tensor], size: int, device: torch.device, backend: str, form: str, *, allocated: bool
) -> Call:
    decoder = BatchedDecoder(device, size, _SIZE, backend, form, allocated=allocated)
    stream, some = torch.cuda.Stream(device), [data[number % len(data)] for number in range(size)]

    def call() -> int:
        decoder(some, stream)
        return size

    return call


def _shown(title: str, **found: Any) -> dict[str, Any]:
    rate = found.get("images_s")
    print(f"{title:66} " + (f"{rate:9.0f} images/s" if rate else str(found)), flush=True)
    return {"title": title, **found}


def _tried(title: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return _shown(title, **run())
    except Exception as error:  # of what is not installed, or not supported: the next case may be
        return _shown(title, error=f"{type(error).__name__}: {error}")


def decoders(data: list[bytes], device: torch.device) -> Iterator[dict[str, Any]]:
    """The decoder that the loader uses, and torchvision's."""
    pageable, pinned = _tensors(data, pinned=False), _tensors(data, pinned=True)
    best = best_jpeg_decoder()
    if best is None:
        raise RuntimeError("neither torchcodec nor torchvision is installed")
    cases = [(best, size, calls, False) for size in (256, 128, 64) for calls in (1, 2, 3, 4, 6, 8)]
    cases += [(best, size, calls, True) for size in (256, 128) for calls in (1, 2, 4, 6)]
    if importlib.util.find_spec("torchvision") and best.name != "torchvision":
        from torchvision.io import ImageReadMode, decode_jpeg

        mode = ImageReadMode.RGB
        old = JpegDecoder("torchvision", lambda some, where: decode_jpeg(some, mode=mode, device=where), turns=False)
        cases += [(old, 256, calls, False) for calls in (1, 2, 4)]
    for decoder, size, calls, pin in cases:
        title = f"{decoder.name}, batches of {size}, {calls} at once" + (", pinned" if pin else "")
        make = partial(_by_decoder, decoder, pinned if pin else pageable, size, device)
        yield _tried(title, partial(_rate, [make] * calls))


def nvjpeg(data: list[bytes], device: torch.device) -> Iterator[dict[str, Any]]:
    """The engines, the multiprocessors, and both, by nvJPEG itself."""
    yield _tried("JPEG engines of the GPU", engines)
    pageable, pinned = _tensors(data, pinned=False), _tensors(data, pinned=True)
    for backend, form, allocated, pin, size, many in (
        ("hardware", "planes", True, True, 256, (1, 2, 3, 4, 6)),
        ("hardware", "planes", True, True, 128, (2, 4, 6)),
        ("hardware", "planes", True, False, 256, (2, 4)),
        ("hardware", "planes", False, True, 256, (1, 2, 4)),
        ("hardware", "rows", True, True, 256, (1, 2, 4)),
        ("gpu", "planes", False, True, 256, (1, 2, 4)),
    ):
        given = pinned if pin else pageable
        make = partial(_by_nvjpeg, given, size, device, backend, form, allocated=allocated)
        for calls in many:
            words = ["pinned" if pin else "pageable", *(["allocated before"] if allocated else [])]
            title = f"nvJPEG, {backend}, {form}, batches of {size}, {calls} at once, {', '.join(words)}"
            yield _tried(title, partial(_rate, [make] * calls))
    hard = partial(_by_nvjpeg, pinned, 256, device, "hardware", "planes", allocated=True)
    soft = partial(_by_nvjpeg, pinned, 128, device, "gpu", "planes", allocated=False)
    for first, second in ((2, 1), (3, 1), (3, 2), (4, 4)):
        title = f"nvJPEG, {first} calls of the hardware and {second} of the multiprocessors"
        mixed = [*[hard] * first, *[soft] * second]
        yield _tried(title, partial(_rate, mixed))


def kernel(data: list[bytes], device: torch.device) -> Iterator[dict[str, Any]]:
    """The kernel that crops, resizes and normalizes, for 256 images."""
    decoder = best_jpeg_decoder()
    images: list[torch.Tensor] = decoder.decode(_tensors(data[:256], pinned=False), device) if decoder else []
    table = OPTIONS.table()
    given = frames(OPTIONS, np.full(len(images), 375), np.full(len(images), 500), Draws(0, np.arange(len(images))))
    out = torch.empty((len(images), 3, 224, 224), dtype=torch.bfloat16, device=device)
    on_device = None if table is None else table.to(device)

    def run() -> dict[str, Any]:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        resample(images, given, on_device, out)
        begin.record()
        for _ in range(20):
            resample(images, given, on_device, out)
        end.record()
        end.synchronize()
        return {"ms": begin.elapsed_time(end) / 20}

    yield _tried("the kernel, 256 images, milliseconds", run)


def loaders(folder: Path, options: argparse.Namespace, device: torch.device) -> Iterator[dict[str, Any]]:
    """The loader with other settings, in turns, and DALI beside it."""
    tried = (
        (2, 256, 3, False), (2, 256, 3, True), (4, 128, 3, True), (4, 128, 3, False), (4, 256, 5, True),
        (6, 128, 4, True), (6, 64, 3, True), (8, 128, 5, True), (8, 64, 4, True), (4, 64, 3, True),
    )  # fmt: skip
    found: dict[str, list[float]] = {}
    with ExitStack() as opened:
        runs: list[tuple[str, Callable[[], Any], tuple[int, int, int, bool] | None]] = []
        for calls, images, threads, pinned in tried:
            made = opened.enter_context(loader(folder, options, device))
            title = f"loader, {calls} calls of {images} images, {threads} threads" + (", pinned" if pinned else "")
            runs.append((title, partial(_epoch, made, device), (calls, images, threads, pinned)))
        if importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.dali"):
            runs += [
                (f"DALI, {share} by the hardware", dali(folder, options, device, share), None) for share in (0.9, 1.0)
            ]
        for trial in range(options.rounds + 1):
            for title, run, setting in runs:
                if setting is not None:
                    _set(*setting)
                began = time.perf_counter()
                count = run()
                if trial:
                    found.setdefault(title, []).append(count / (time.perf_counter() - began))
    for title, rates in found.items():
        yield _shown(title, images_s=spread(rates)["median"], trials=rates)


def _set(calls: int, images: int, threads: int, pinned: bool) -> None:
    """What loaders take when they are opened, and epochs when they begin."""
    decode_images.CALLS, decode_images.IMAGES_OF_A_CALL = calls, images
    epochs.IMAGE_THREADS, assemble_device.PINNED = threads, pinned


def _epoch(batches: Any, device: torch.device) -> int:
    count = sum(len(batch["label"]) for batch in batches)
    torch.cuda.synchronize(device)
    return count


def _section(name: str, folder: Path, options: argparse.Namespace) -> int:
    """Run a section, and leave what it found beside the data."""
    device = torch.device("cuda", torch.cuda.current_device())
    data = [path.read_bytes() for path in sorted((folder / "files" / "class").iterdir())[:512]]
    found: list[dict[str, Any]] = []
    made = (
        loaders(folder, options, device)
        if name == "loaders"
        else {"decoders": decoders, "nvjpeg": nvjpeg, "kernel": kernel}[name](data, device)
    )
    for one in made:
        found.append(one)
        (folder / f"{name}.json").write_text(json.dumps(found), encoding="utf-8")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run all sections, and write the record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jpeg_decoders", description="JPEGs on a GPU")
    parser.add_argument("--images", type=int, default=12288, help="of an epoch of the loader")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=4, help="epochs of the loader with each setting")
    parser.add_argument("--sections", nargs="+", default=["kernel", "loaders", "decoders", "nvjpeg"])
    parser.add_argument("--section-seconds", type=float, default=200, help="after which a section is ended")
    parser.add_argument("--data", type=Path, help="for a section: where the images are")
    parser.add_argument("--out", type=Path, help="where the JSON record goes")
    options = parser.parse_args(arguments)
    if options.data is not None:
        return _section(options.sections[0], options.data, options)
    device = torch.device("cuda", torch.cuda.current_device())
    given = sys.argv[1:] if arguments is None else arguments
    record: dict[str, Any] = {
        "command": public(given), "date": dt.datetime.now(dt.UTC).date().isoformat(), "machine": machine(device),
        "versions": versions(), "sections": {},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written(folder, options.images)
        for section in options.sections:
            command = [
                sys.executable, "-m", "benchmarks.jpeg_decoders", "--sections", section, "--data", name,
                "--images", str(options.images), "--batch-size", str(options.batch_size),
                "--rounds", str(options.rounds),
            ]  # fmt: skip
            try:
                status: object = subprocess.run(command, check=False, timeout=options.section_seconds).returncode
            except subprocess.TimeoutExpired:
                status = "out of time"
            file = folder / f"{section}.json"
            record["sections"][section] = {
                "status": status,
                "found": json.loads(file.read_text()) if file.exists() else [],
            }
            if options.out is not None:
                options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
