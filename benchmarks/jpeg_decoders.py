"""Benchmark of JPEG decoders on a GPU: by calls at once and images of a call, and in the loader.

    python -m benchmarks.jpeg_decoders --out benchmarks/results/jpeg-decoders.json

JPEGs of 500 x 375 pixels and about 57 KB. Each section runs in its own process, so that one that fails takes no
other with it, and its result is shown at once. One section is the loader of `benchmarks.images` with batches
of several sizes, in turns; another decodes the same bytes again and again and throws the pixels away.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.images import OPTIONS, dali, loader, on_host, written
from benchmarks.record import head, save, spread
from gdsload.engine.gpu.jpeg_decoders import HardwareDecoder, JpegDecoder, best_jpeg_decoder, list_decoder
from gdsload.engine.gpu.nvjpeg import NvJpeg, hardware_decoder
from gdsload.engine.gpu.resample_device import resample
from gdsload.engine.images.frames import Draws, frames

__all__ = ["main"]

_SECONDS = 1.2
Call = Callable[[], int]
"""Decodes some images and waits for them; returns how many."""


def _rate(makers: Sequence[Callable[[], Call]]) -> dict[str, Any]:
    """Images a second, by several calls at once, each again and again in its own thread."""
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


def _again_and_again(
    make: Callable[[], JpegDecoder], data: list[bytes], sizes: Sequence[int], device: torch.device, *, pinned: bool
) -> Call:
    """Calls of a decoder, of so many images in turn."""
    decoder, stream = make(), torch.cuda.Stream(device)
    turns = cycle([on_host(data, size, pinned=pinned) for size in sizes])

    def call() -> int:
        looked = next(turns)
        with torch.cuda.stream(stream):
            if not decoder.decode(looked, np.arange(len(looked)), stream):
                raise RuntimeError(f"{decoder.name} refuses them")
            stream.synchronize()
        return len(looked)

    return call


def _shown(title: str, **found: Any) -> dict[str, Any]:
    rate, busy = found.get("images_s"), found.get("decoder_busy")
    shown = str(found) if rate is None else f"{rate:9.0f} images/s"
    print(f"{title:60} {shown}" + (f", decoder busy for {busy:.2f} of the time" if busy else ""), flush=True)
    return {"title": title, **found}


def _tried(title: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return _shown(title, **run())
    except Exception as error:  # of what is not installed, or not supported: the next case may be
        return _shown(title, error=f"{type(error).__name__}: {error}")


def decoders(data: list[bytes], device: torch.device) -> Iterator[dict[str, Any]]:
    """NvJPEG's hardware, and what calls it for torch."""

    def hardware() -> JpegDecoder:
        found = hardware_decoder(device)
        if found is None:
            raise RuntimeError("nvJPEG's hardware decoder is not there")
        return HardwareDecoder(found)

    def library() -> JpegDecoder:
        found = list_decoder()
        if found is None:
            raise RuntimeError("neither torchcodec nor torchvision is installed")
        return found

    for name, make in (("nvJPEG", hardware), ("torchcodec or torchvision", library)):
        for sizes, calls, pinned in (
            ((256,), 1, True), ((256,), 1, False), ((256,), 2, True), ((256,), 3, True), ((1024,), 1, True),
            ((512,), 1, True), ((512, 500), 1, True), ((512, 500, 484, 470, 455, 440), 1, True), ((128,), 1, True),
            ((64,), 1, True), ((64,), 2, True), ((32,), 1, True),
        ):  # fmt: skip
            counts = ", ".join(map(str, sizes))
            title = f"{name}, calls of {counts} images, {calls} at once" + (", pinned" if pinned else "")
            again = partial(_again_and_again, make, data, sizes, device, pinned=pinned)
            yield _tried(title, partial(_rate, [again] * calls))


def kernel(data: list[bytes], device: torch.device) -> Iterator[dict[str, Any]]:
    """The kernel that crops, resizes and normalizes, for 256 images."""
    looked = on_host(data, 256, pinned=True)
    decoder = best_jpeg_decoder(device)
    if decoder is None:
        raise RuntimeError("nothing decodes JPEGs on this GPU")
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        images = decoder.decode(looked, np.arange(256), stream)
        stream.synchronize()
    table = OPTIONS.table()
    given = frames(OPTIONS, np.full(256, 375), np.full(256, 500), Draws(0, np.arange(256)))
    out = torch.empty((256, 3, 224, 224), dtype=torch.bfloat16, device=device)
    on_device = None if table is None else table.to(device)

    def run() -> dict[str, Any]:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        resample(images, given, on_device, [out])
        begin.record()
        for _ in range(20):
            resample(images, given, on_device, [out])
        end.record()
        end.synchronize()
        return {"ms": begin.elapsed_time(end) / 20}

    yield _tried("the kernel, 256 images, milliseconds", run)


def loaders(folder: Path, options: argparse.Namespace, device: torch.device) -> Iterator[dict[str, Any]]:
    """The loader with batches of several sizes, in turns, and DALI beside it.

    Beside the rate is the share of the time in which the decoder is at work: what it is short of 1 is what the rest of
    the loader keeps it waiting.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    with ExitStack() as opened:
        runs: list[tuple[str, Callable[[], Any]]] = []
        for size in (64, 128, 256, 512):
            given = argparse.Namespace(**{**vars(options), "batch_size": size})
            made = opened.enter_context(loader(folder, given, device))
            runs.append((f"loader, batches of {size}", partial(_epoch, made, device)))
        if importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.dali"):
            shares = (0.9, 1.0)
            runs += [(f"DALI, {one} by the hardware", dali(folder, options, device, one)) for one in shares]
        busy = opened.enter_context(_timed())
        for trial in range(options.rounds + 1):
            for title, run in runs:
                busy[0] = 0.0
                began = time.perf_counter()
                count, took = run(), time.perf_counter() - began
                if trial:
                    found.setdefault(title, []).append((count / took, busy[0] / took))
    for title, trials in found.items():
        rates, shares = zip(*trials, strict=True)
        yield _shown(title, images_s=spread(rates)["median"], trials=rates, decoder_busy=spread(shares)["median"])


@contextmanager
def _timed() -> Iterator[list[float]]:
    """Seconds that calls of nvJPEG take, those of two calls at once added up."""
    seconds, plain = [0.0], NvJpeg.decode

    def timed(self: NvJpeg, *given: Any) -> None:
        began = time.perf_counter()
        try:
            plain(self, *given)
        finally:
            seconds[0] += time.perf_counter() - began

    NvJpeg.decode = timed  # type: ignore[method-assign, assignment]
    try:
        yield seconds
    finally:
        NvJpeg.decode = plain  # type: ignore[method-assign]


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
        else {"decoders": decoders, "kernel": kernel}[name](data, device)
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
    parser.add_argument("--sections", nargs="+", default=["kernel", "loaders", "decoders"])
    parser.add_argument("--section-seconds", type=float, default=200, help="after which a section is ended")
    parser.add_argument("--data", type=Path, help="for a section: where the images are")
    parser.add_argument("--out", type=Path, help="where the JSON record goes")
    options = parser.parse_args(arguments)
    if options.data is not None:
        return _section(options.sections[0], options.data, options)
    device = torch.device("cuda", torch.cuda.current_device())
    record: dict[str, Any] = {**head("benchmarks.jpeg_decoders", arguments, device), "sections": {}}
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
                save(record, options.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
