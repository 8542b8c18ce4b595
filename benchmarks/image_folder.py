"""Training on a folder of JPEGs: kept encoded in shards, decoded once, and by torch's loader with workers.

    python -m benchmarks.image_folder --out benchmarks/results/image-folder-cpu.json
    python -m benchmarks.image_folder --device cuda --images 16384 --batch-size 256 --model resnet18 --out gpu.json

A folder of class folders is written, of JPEGs of 500 x 375 pixels, and converted with ``keep_encoded=True``. Then a
network is trained with random-resized-crop 224 and flips, in turns by each contender; an epoch counts from asking for
the first batch to the end of the last step. All is in the page cache. Torch's loader has a worker for each processor,
which live from epoch to epoch; where torchvision is installed, its `ImageFolder` takes part, too. The steps alone, on
one batch again and again, are what no loader can be faster than. First epochs are not counted.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gdsload
from benchmarks.gpu.resnet import ResNet
from benchmarks.images import MEAN, STD, Folder, jpegs, options_of
from benchmarks.record import head, ratio, save, spread
from gdsload.transforms import DecodeImage, Normalize, RandomFlip, RandomResizedCrop

__all__ = ["main"]

_CLASSES, _SIZE = 10, 224
_DIFFERENT = 256
"""Images that differ; further ones are these again."""
Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]
"""Images, bfloat16 or float32 ``[batch, 3, 224, 224]``, and labels, on the device."""


def written(folder: Path, count: int) -> None:
    """A folder of class folders, and the shards that it is converted to."""
    different = jpegs(min(count, _DIFFERENT))
    for number in range(count):
        place = folder / "files" / f"class-{number % _CLASSES}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:07}.jpg").write_bytes(different[number % len(different)])
    gdsload.convert(folder / "files", folder / "shards", keep_encoded=True, workers=1)
    os.sync()  # or the system writes them back while something is measured


class Small:
    """Steps of a network that a processor trains faster than it decodes."""

    def __init__(self, device: torch.device) -> None:
        self._net = nn.Sequential(
            nn.Conv2d(3, 8, 8, 8), nn.ReLU(), nn.Conv2d(8, 16, 4, 4), nn.ReLU(), nn.Flatten(),
            nn.Linear(16 * 49, _CLASSES),
        ).to(device)  # fmt: skip
        self._optimizer = torch.optim.SGD(self._net.parameters(), 0.01)

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """One step."""
        self._optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(self._net(images.float()), labels).backward()
        self._optimizer.step()


Step = Callable[[torch.Tensor, torch.Tensor], None]


def step_of(model: str, device: torch.device) -> Step:
    """A step of training of the network that was asked for."""
    if model == "small":
        return Small(device)
    net = ResNet(model, device)
    return lambda images, _labels: net(images)


def encoded(folder: Path, options: argparse.Namespace, device: torch.device) -> Batches:
    """Decoded in every epoch, each crop from all pixels."""
    wanted = DecodeImage(size=_SIZE, crop="random-resized", flip=0.5, mean=MEAN, std=STD, dtype=torch.bfloat16)
    return gdsload.DataLoader(
        folder / "shards", options.batch_size, shuffle=True, drop_last=True, device=device, decode={"image": wanted},
        as_tuple=("image", "label"),
    )  # fmt: skip


def kept(folder: Path, options: argparse.Namespace, device: torch.device) -> Batches:
    """Decoded once: the middle, flipped or not. What is trained on is less, and nothing is decoded any more."""
    cache: Any = "vram" if device.type == "cuda" else "ram"
    wanted = DecodeImage(size=_SIZE, crop="center", flip=0.5, mean=MEAN, std=STD, dtype=torch.bfloat16)
    return gdsload.DataLoader(
        folder / "shards", options.batch_size, shuffle=True, drop_last=True, device=device, decode={"image": wanted},
        cache=cache, as_tuple=("image", "label"),
    )  # fmt: skip


def kept_and_cropped(folder: Path, options: argparse.Namespace, device: torch.device) -> Batches:
    """Decoded and resized to 256 once, and cropped in every epoch."""
    wanted = DecodeImage(size=256, crop="center", resize=256)
    augment: list[Callable[..., Any]] = [
        RandomResizedCrop("image", _SIZE), RandomFlip("image"), Normalize("image", MEAN, STD, dtype=torch.bfloat16),
    ]  # fmt: skip
    cache: Any = "vram" if device.type == "cuda" else "ram"
    return gdsload.DataLoader(
        folder / "shards", options.batch_size, shuffle=True, drop_last=True, device=device, decode={"image": wanted},
        cache=cache, device_transform=augment, as_tuple=("image", "label"),
    )  # fmt: skip


class Labelled(Folder):
    """Files of class folders, decoded by Pillow."""

    def __init__(self, folder: Path) -> None:
        files = sorted((folder / "files").rglob("*.jpg"))
        self._paths = [str(path) for path in files]
        self._labels = [int(path.parent.name.rpartition("-")[2]) for path in files]

    def __getitem__(self, number: int) -> Any:
        return super().__getitem__(number)["image"], self._labels[number]


def by_torch(dataset: Any, options: argparse.Namespace, device: torch.device) -> Batches:
    """Torch's loader with a worker for each processor."""
    loader = torch.utils.data.DataLoader(
        dataset, options.batch_size, shuffle=True, drop_last=True, num_workers=len(os.sched_getaffinity(0)),
        pin_memory=device.type == "cuda", persistent_workers=True,
    )  # fmt: skip
    return _Moved(loader, device)


class _Moved:
    """Batches of a loader, moved to the device."""

    def __init__(self, batches: Iterable[Any], device: torch.device) -> None:
        self._batches, self._device = batches, device

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for images, labels in self._batches:
            yield images.to(self._device, non_blocking=True), labels.to(self._device, non_blocking=True)


def image_folder(folder: Path) -> Any:
    """Torchvision's `ImageFolder` with its transforms."""
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    return ImageFolder(
        str(folder / "files"),
        v2.Compose([
            v2.RandomResizedCrop(_SIZE, antialias=True), v2.RandomHorizontalFlip(), v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD), v2.ToDtype(torch.bfloat16),
        ]),
    )  # fmt: skip


def contenders(folder: Path, options: argparse.Namespace, device: torch.device) -> dict[str, Batches]:
    """The contenders, which take turns, by title."""
    found = {
        "gdsload, kept encoded": encoded(folder, options, device),
        "gdsload, the middle decoded once": kept(folder, options, device),
        "gdsload, decoded once, cropped anew": kept_and_cropped(folder, options, device),
        "torch's loader, Pillow in workers": by_torch(Labelled(folder), options, device),
    }
    if importlib.util.find_spec("torchvision"):
        found["torch's loader, ImageFolder in workers"] = by_torch(image_folder(folder), options, device)
    return found


def epoch(batches: Batches, step: Step, device: torch.device) -> tuple[float, int]:
    """Seconds of an epoch, and its images."""
    began, count = time.perf_counter(), 0
    for images, labels in batches:
        step(images, labels)
        count += len(labels)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began, count


def measured(folder: Path, options: argparse.Namespace, device: torch.device) -> dict[str, dict[str, Any]]:
    """Epochs in turns; the first of each is not counted."""
    step, seconds, count = step_of(options.model, device), dict[str, list[float]](), 0
    runs = contenders(folder, options, device)
    for number in range(options.epochs + 1):
        for name, batches in runs.items():
            took, count = epoch(batches, step, device)
            if number:
                seconds.setdefault(name, []).append(took)
        if number:
            images = torch.rand(options.batch_size, 3, _SIZE, _SIZE, device=device).to(torch.bfloat16)
            labels = torch.arange(options.batch_size, device=device) % _CLASSES
            again = [(images, labels)] * (count // options.batch_size)
            seconds.setdefault("the steps alone", []).append(epoch(again, step, device)[0])
    return {name: {"epoch_s": trials, "images": count} for name, trials in seconds.items()}


def main(arguments: list[str] | None = None) -> int:
    """Run it, print a table, and write the record."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.image_folder", description="epochs over a folder of JPEGs"
    )
    parser.add_argument("--epochs", type=int, default=3, help="that are counted")
    parser.add_argument("--model", choices=["small", "resnet18", "resnet50"], default="small")
    options, device = options_of(parser, arguments, batch_size=64)
    with tempfile.TemporaryDirectory() as name:
        written(Path(name), options.images)
        found = measured(Path(name), options, device)
    ours = found["gdsload, kept encoded"]["epoch_s"]
    for title, entry in found.items():
        took = spread(entry["epoch_s"])
        entry["of_gdsload"] = ratio(entry["epoch_s"], ours)
        print(
            f"{title:40} {took['median']:7.2f} s an epoch ({took['q1']:.2f}-{took['q3']:.2f}), "
            f"{entry['images'] / took['median']:8.0f} images/s, {entry['of_gdsload']['median']:.2f} of gdsload's time"
        )
    if options.out is not None:
        save(
            {**head("benchmarks.image_folder", arguments, device), "model": options.model, "results": found},
            options.out,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
