"""Encoded images: decode, random-resized-crop 224, flip and normalize to bf16, beside the decoder alone and peers.

    python -m benchmarks.images --out benchmarks/results/images-cpu.json
    python -m benchmarks.images --device cuda --images 16384 --out benchmarks/results/images-gpu.json

JPEGs of 500 x 375 pixels and about 57 KB are in shards and in a folder, all in the page cache. In each round everything
runs once, in turn, over an epoch; shown are medians and quartiles of images a second, and processor seconds of this
process and its children for 1000 images. The decoder alone decodes the same bytes, which it has in memory, on all
processors or by batches on the GPU, and throws the pixels away: it is what the loader's share is of. Before that, an
epoch of the loader on the device is compared with what the CPU makes of the same images.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import io
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gdsload
from benchmarks.record import head, ratio, save, spread
from gdsload.engine.gpu.jpeg_decoders import JpegDecoder, best_jpeg_decoder, list_decoder
from gdsload.engine.images.encoded import EncodedImages, Looked, look_at
from gdsload.engine.images.frames import Draws, Frame, frames
from gdsload.engine.images.host_decoders import decode_image
from gdsload.engine.images.resample import put_normalized, resampled
from gdsload.shards.format.image_header import read_image_header
from gdsload.shards.gather_host import one_thread
from gdsload.transforms import DecodeImage

__all__ = ["main"]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
OPTIONS = DecodeImage(size=224, crop="random-resized", flip=0.5, mean=MEAN, std=STD, dtype=torch.bfloat16)
_DIFFERENT = 512
"""Images that differ; further ones are these again."""

Run = Callable[[], int]
"""An epoch, or what is in its place; returns its images."""


def jpegs(count: int) -> list[bytes]:
    """Photograph-like JPEGs of 500 x 375 pixels."""
    from PIL import Image

    generator, found = np.random.default_rng(0), []
    for _ in range(count):
        small = Image.fromarray(generator.integers(0, 256, (48, 63, 3), np.uint8))
        smooth = np.asarray(small.resize((500, 375), Image.Resampling.BICUBIC)).astype(np.int16)
        noisy = smooth + generator.integers(-9, 10, (375, 500, 3), np.int16)
        out = io.BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(out, "JPEG", quality=85)
        found.append(out.getvalue())
    return found


def written(folder: Path, count: int) -> list[bytes]:
    """Shards, and a folder of files of one class, of so many images; returns those that differ."""
    different = jpegs(min(count, _DIFFERENT))
    (folder / "files" / "class").mkdir(parents=True)
    with gdsload.ShardWriter(
        folder / "shards", {"image": gdsload.Field("image"), "label": gdsload.Field("int64")}
    ) as w:
        for number in range(count):
            data = different[number % len(different)]
            w.write({"image": data, "label": number})
            (folder / "files" / "class" / f"{number:07}.jpg").write_bytes(data)
    os.sync()  # or the system writes them back while something is measured
    return different


def loader(folder: Path, options: argparse.Namespace, device: torch.device, **given: Any) -> gdsload.DataLoader:
    """The loader that is measured."""
    given = {"decode": {"image": OPTIONS}, "shuffle": "full", "drop_last": True, **given}
    return gdsload.DataLoader(folder / "shards", options.batch_size, device=device, **given)


def _consumed(batches: Iterator[Any], device: torch.device) -> int:
    count = 0
    for batch in batches:
        count += len(batch["label"])
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return count


def compared(folder: Path, options: argparse.Namespace, device: torch.device) -> dict[str, float]:
    """Mean and largest difference to what the CPU makes of some batches, in values up to 255 before normalization."""
    unit = 255 * torch.tensor(STD)[:, None, None]
    mean, most, seen = 0.0, 0.0, 0
    with loader(folder, options, device) as one, loader(folder, options, torch.device("cpu")) as other:
        for there, here in zip(one, other, strict=True):
            if there["label"].tolist() != here["label"].tolist():
                raise RuntimeError("batches have other samples on the device than on the CPU")
            apart = (there["image"].cpu().float() - here["image"].float()).abs() * unit
            mean, most, seen = mean + float(apart.mean()), max(most, float(apart.max())), seen + 1
            if seen == 4:
                break
    return {"mean": mean / seen, "most": most}


def decoder_alone(data: list[bytes], count: int, options: argparse.Namespace, device: torch.device) -> tuple[str, Run]:
    """Decoding the same bytes and nothing else: what it is, and an epoch of it."""
    if device.type == "cuda":
        decoder = best_jpeg_decoder(device)
        if decoder is None:
            raise RuntimeError("neither nvJPEG's hardware decoder nor torchcodec nor torchvision is there")
        size: int = options.batch_size
        batches = [data[low : low + size] for low in range(0, len(data) - size + 1, size)] or [data]
        return f"{decoder.name} alone, batches of {size}", _calls(decoder, batches, count, device)
    title = f"the loader's decoder alone, {len(os.sched_getaffinity(0))} threads"
    return title, lambda: _by_threads(data, count, lambda _pixels, _number: None)


def _calls(decoder: JpegDecoder, batches: list[list[bytes]], count: int, device: torch.device) -> Run:
    """One call of a GPU's decoder after the other, of bytes that are there before."""
    made = [on_host(batch, len(batch), pinned=True) for batch in batches]
    stream = torch.cuda.Stream(device)

    def run() -> int:
        done = number = 0
        with torch.cuda.stream(stream):
            while done < count:
                one = made[number % len(made)]
                if not decoder.decode(one, np.arange(len(one)), stream):
                    raise RuntimeError(f"{decoder.name} refuses them")
                stream.synchronize()
                done, number = done + len(one), number + 1
        return done

    return run


def on_host(data: list[bytes], count: int, *, pinned: bool) -> Looked:
    """So many images, of these again and again, in memory of the host, and what their headers say."""
    some = [data[number % len(data)] for number in range(count)]
    values = torch.frombuffer(bytearray(b"".join(some)), dtype=torch.uint8)
    lengths = np.array([len(one) for one in some], np.int64)
    return look_at([EncodedImages(values.pin_memory() if pinned else values, lengths)], OPTIONS.max_pixels)


def _by_threads(
    data: list[bytes], count: int, use: Callable[[Any, int], None], into: list[bytearray] | None = None
) -> int:
    """Decode so many images on all processors, and use the pixels of each.

    Args:
        data: images.
        count: how many.
        use: called with pixels and number.
        into: memory for a batch of them; None: pixels go where the last image's of the thread went.
    """
    kept = threading.local()

    def some(numbers: range) -> None:
        with one_thread():
            if not hasattr(kept, "memory"):
                kept.memory = bytearray(500 * 375 * 3)
            for number in numbers:
                view = memoryview(data[number % len(data)])
                memory = kept.memory if into is None else into[number % len(into)]
                use(decode_image(view, read_image_header(view), memory), number)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        for _ in threads.map(some, (range(low, min(low + 16, count)) for low in range(0, count, 16))):
            pass
    return count


def same_work(data: list[bytes], count: int, size: int) -> int:
    """The loader's work for each image on a CPU, without a loader: by all processors, into one batch's memory."""
    table, numbers = OPTIONS.table(), np.arange(count)
    given = frames(OPTIONS, np.full(count, 375), np.full(count, 500), Draws(0, numbers)).tolist()
    out = torch.empty((size, 3, 224, 224), dtype=torch.bfloat16)

    def use(pixels: Any, number: int) -> None:
        shown = resampled(torch.from_numpy(pixels).permute(2, 0, 1), Frame(*given[number]), (224, 224))
        put_normalized(shown, table, out[number % size])

    return _by_threads(data, count, use)


def dali(folder: Path, options: argparse.Namespace, device: torch.device, share: float) -> Run:
    """NVIDIA DALI: file reader, decoder, random-resized-crop, flip and normalization.

    Args:
        folder: where the files are.
        options: the command line.
        device: the GPU.
        share: of the images that the hardware decoder gets.
    """
    top, fn, plugin = (importlib.import_module(f"nvidia.dali{name}") for name in ("", ".fn", ".plugin.pytorch"))
    pipeline = top.Pipeline(options.batch_size, len(os.sched_getaffinity(0)), device.index or 0, prefetch_queue_depth=4)
    with pipeline:
        encoded, labels = fn.readers.file(
            file_root=str(folder / "files"), random_shuffle=True, name="reader", dont_use_mmap=False
        )
        images = fn.decoders.image(encoded, device="mixed", output_type=top.types.RGB, hw_decoder_load=share)
        images = fn.random_resized_crop(images, size=(224, 224), antialias=True)
        images = fn.crop_mirror_normalize(
            images, mirror=fn.random.coin_flip(), dtype=top.types.FLOAT16, output_layout="CHW",
            mean=[255 * one for one in MEAN], std=[255 * one for one in STD],
        )  # fmt: skip
        pipeline.set_outputs(images, labels)
    policy = plugin.LastBatchPolicy.DROP
    batches = plugin.DALIGenericIterator(
        [pipeline], ["image", "label"], reader_name="reader", auto_reset=True, last_batch_policy=policy
    )
    return lambda: _consumed((batch[0] for batch in batches), device)


class Folder(torch.utils.data.Dataset[dict[str, Any]]):
    """The folder as torch's loader reads it: Pillow, and torch's own resize, in its worker processes."""

    def __init__(self, folder: Path) -> None:
        self._paths = sorted(map(str, (folder / "files" / "class").iterdir()))

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> dict[str, Any]:
        from PIL import Image

        with Image.open(self._paths[number]) as opened:
            image = opened.convert("RGB")
        top, left, rows, columns = _rectangle(image.height, image.width)
        cut = image.crop((left, top, left + columns, top + rows)).resize((224, 224), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.array(cut)).permute(2, 0, 1)
        pixels = pixels.flip(-1) if torch.rand(()) < 0.5 else pixels
        mean, std = torch.tensor([MEAN, STD])[..., None, None]
        return {"image": ((pixels / 255 - mean) / std).to(torch.bfloat16), "label": number}


def _rectangle(height: int, width: int) -> tuple[int, int, int, int]:
    for _ in range(10):
        area = height * width * float(torch.empty(()).uniform_(0.08, 1))
        shape = float(torch.empty(()).uniform_(-0.2877, 0.2877).exp())
        rows, columns = round((area / shape) ** 0.5), round((area * shape) ** 0.5)
        if rows <= height and columns <= width:
            top, left = int(torch.randint(height - rows + 1, ())), int(torch.randint(width - columns + 1, ()))
            return top, left, rows, columns
    return 0, 0, height, width


def torch_loader(folder: Path, options: argparse.Namespace, device: torch.device) -> Run:
    """Torch's loader over the folder, with a worker for each processor, copied to the device."""
    loader = torch.utils.data.DataLoader(
        Folder(folder), options.batch_size, shuffle=True, drop_last=True, num_workers=len(os.sched_getaffinity(0)),
        pin_memory=device.type == "cuda",
    )  # fmt: skip

    def moved() -> Iterator[dict[str, Any]]:
        for batch in loader:
            yield {**batch, "image": batch["image"].to(device, non_blocking=True)}

    return lambda: _consumed(moved(), device)


def runs(
    folder: Path, data: list[bytes], options: argparse.Namespace, device: torch.device
) -> dict[str, tuple[str, Run]]:
    """The runs that take turns: titles and epochs, by name."""
    found: dict[str, tuple[str, Run]] = {}
    ours = loader(folder, options, device)
    found["gdsload"] = "gdsload, decode=", lambda: _consumed(iter(ours), device)
    if device.type == "cpu":
        whole = loader(folder, options, device, decode={"image": DecodeImage(channels_last=True)})
        found["gdsload-whole"] = "gdsload, decoded and nothing else", lambda: _consumed(iter(whole), device)
        size: int = options.batch_size
        pixels = [bytearray(500 * 375 * 3) for _ in range(size)]
        found["decoder-kept"] = (
            "the decoder alone, pixels kept for a batch",
            lambda: _by_threads(data, options.images, lambda _pixels, _number: None, pixels),
        )
        found["work"] = "the same work without a loader", lambda: same_work(data, options.images, size)
    found["decoder"] = decoder_alone(data, options.images, options, device)
    if device.type == "cuda" and (library := list_decoder()) is not None:
        batches = [data[low : low + options.batch_size] for low in range(0, len(data), options.batch_size)]
        title = f"{library.name} alone, one call at a time"
        found[library.name] = title, _calls(library, batches, options.images, device)
    if device.type == "cuda" and importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.dali"):
        found["dali-hw"] = "DALI, 0.9 by the hardware decoder", dali(folder, options, device, 0.9)
        found["dali"] = "DALI, its default share by the hardware decoder", dali(folder, options, device, 0.65)
    if not options.without_torch:
        found["torch"] = "torch's loader, Pillow in workers", torch_loader(folder, options, device)
    return found


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def measured(made: dict[str, tuple[str, Run]], rounds: int) -> dict[str, dict[str, Any]]:
    """Trials in turns; the first round warms up."""
    found: dict[str, dict[str, Any]] = {
        name: {"title": title, "images_s": [], "cpu_s_for_1000": []} for name, (title, _) in made.items()
    }
    for number in range(rounds + 1):
        for name, (_, run) in made.items():
            began, cpu = time.perf_counter(), _cpu_s()
            count = run()
            if number:
                found[name]["images_s"].append(count / (time.perf_counter() - began))
                found[name]["cpu_s_for_1000"].append(max(_cpu_s() - cpu, 1e-6) / count * 1000)  # of a tiny run it is 0
    return found


def options_of(
    parser: argparse.ArgumentParser, arguments: list[str] | None, *, batch_size: int
) -> tuple[argparse.Namespace, torch.device]:
    """The command line and the device of a benchmark of images.

    Args:
        parser: with the options that this benchmark has alone.
        arguments: of the command; None: those of this process.
        batch_size: the default.
    """
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=batch_size)
    parser.add_argument("--out", type=Path, help="where the JSON record goes")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    return options, torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" else device


def main(arguments: list[str] | None = None) -> int:
    """Run it, print a table, and write the record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.images", description="encoded images to batches")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without-torch", action="store_true", help="leave torch's loader out")
    options, device = options_of(parser, arguments, batch_size=256)
    with tempfile.TemporaryDirectory() as name:
        data = written(Path(name), options.images)
        apart = compared(Path(name), options, device)
        print(f"beside what the CPU makes of them: {apart['mean']:.3f} of 255 on average, {apart['most']:.1f} at most")
        found = measured(runs(Path(name), data, options, device), options.rounds)
    for entry in found.values():
        entry["of_the_decoder"] = ratio(entry["images_s"], found["decoder"]["images_s"])
        entry["cpu_of_the_decoder"] = ratio(found["decoder"]["cpu_s_for_1000"], entry["cpu_s_for_1000"])
        if "work" in found:
            entry["of_the_work"] = ratio(entry["images_s"], found["work"]["images_s"])
            entry["cpu_of_the_work"] = ratio(found["work"]["cpu_s_for_1000"], entry["cpu_s_for_1000"])
        rate, cpu = spread(entry["images_s"]), spread(entry["cpu_s_for_1000"])
        print(
            f"{entry['title']:50} {rate['median']:9.0f} images/s ({rate['q1']:.0f}-{rate['q3']:.0f}), "
            f"{cpu['median']:6.2f} CPU s for 1000, {entry['of_the_decoder']['median']:.2f} of the decoder"
            + (f", {entry['of_the_work']['median']:.2f} of the same work" if "work" in found else "")
            + f"; by processor seconds {entry['cpu_of_the_decoder']['median']:.2f}"
            + (f" and {entry['cpu_of_the_work']['median']:.2f}" if "work" in found else "")
        )
    if options.out is not None:
        nbytes = sum(map(len, data)) / len(data)
        begin = head("benchmarks.images", arguments, device)
        save({**begin, "bytes": nbytes, "beside_the_cpu": apart, "results": found}, options.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
