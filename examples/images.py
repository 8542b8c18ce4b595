"""Train a small network on a folder of images that stay encoded in their shards.

usage: python examples/images.py FOLDER [IMAGES]

JPEGs in class folders, the layout of torchvision's ImageFolder, are converted unchanged and decoded by the loader.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn

import gdsload
from gdsload.transforms import DecodeImage


def write(folder: Path, count: int) -> None:
    """Write JPEGs of discs and squares with random sizes, colours and positions, in one folder per class."""
    random = np.random.default_rng(0)
    for number in range(count):
        width, height = random.integers(64, 160, 2).tolist()
        left, top, side = width // 4, height // 4, min(width, height) // 2
        dark, bright = (tuple(random.integers(low, low + 100, 3).tolist()) for low in (0, 150))
        image = Image.new("RGB", (width, height), dark)
        draw = ImageDraw.Draw(image)
        (draw.rectangle if number % 2 else draw.ellipse)((left, top, left + side, top + side), fill=bright)
        place = folder / ("square" if number % 2 else "disc")
        place.mkdir(parents=True, exist_ok=True)
        image.save(place / f"{number:05}.jpg", quality=90)


def main(path: str, count: int = 2000) -> float:
    """Train for four epochs, and return the accuracy of the last one."""
    write(Path(path) / "files", count)
    gdsload.convert(Path(path) / "files", Path(path) / "shards", keep_encoded=True, workers=1)
    crop = DecodeImage(size=32, crop="random-resized", scale=(0.6, 1), flip=0.5, mean=(0.5,) * 3, std=(0.25,) * 3)
    layers = [nn.Conv2d(3, 16, 5, 2), nn.ReLU(), nn.Conv2d(16, 32, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(800, 2)]
    with gdsload.DataLoader(Path(path) / "shards", 32, shuffle=True, decode={"image": crop}) as loader:
        model = nn.Sequential(*layers).to(loader.device)
        optimiser = torch.optim.Adam(model.parameters(), 3e-3)
        for epoch in range(4):
            right = 0
            for batch in loader:
                found, label = model(batch["image"]), batch["label"]
                nn.functional.cross_entropy(found, label).backward()
                optimiser.step()
                optimiser.zero_grad()
                right += (found.argmax(1) == label).sum()
            print(f"epoch {epoch}: {right / count:.1%} right")
    return float(right / count)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:])) if sys.argv[1:] else sys.exit(__doc__)
