"""Train a small network on JPEGs that stay encoded in their shards, and are decoded on the way to the batch.

usage: python examples/images.py FOLDER [IMAGES]
"""

from __future__ import annotations

import io
import sys
import time

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn

import gdsload
from gdsload.transforms import DecodeImage


def write(path: str, count: int) -> None:
    """JPEGs of discs (label 0) and squares (label 1), of many sizes, colours and places."""
    random = np.random.default_rng(0)
    with gdsload.ShardWriter(path, {"image": gdsload.Field("image"), "label": gdsload.Field("int64")}) as writer:
        for number in range(count):
            width, height = random.integers(64, 160, 2).tolist()
            left, top, side = width // 4, height // 4, min(width, height) // 2
            dark, bright = (tuple(random.integers(low, low + 100, 3).tolist()) for low in (0, 150))
            image = Image.new("RGB", (width, height), dark)
            draw = ImageDraw.Draw(image)
            (draw.rectangle if number % 2 else draw.ellipse)((left, top, left + side, top + side), fill=bright)
            out = io.BytesIO()
            image.save(out, "JPEG", quality=90)
            writer.write({"image": out.getvalue(), "label": number % 2})


def main(path: str, count: int = 2000) -> float:
    """Four epochs, and the share of right answers in the last one."""
    write(path, count)
    crop = DecodeImage(size=32, crop="random-resized", scale=(0.6, 1), flip=0.5, mean=(0.5,) * 3, std=(0.25,) * 3)
    layers = [nn.Conv2d(3, 16, 5, 2), nn.ReLU(), nn.Conv2d(16, 32, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(800, 2)]
    right = 0.0
    with gdsload.DataLoader(path, 32, shuffle=True, decode={"image": crop}) as loader:
        model = nn.Sequential(*layers).to(loader.device)
        optimiser = torch.optim.Adam(model.parameters(), 3e-3)
        for epoch in range(4):
            began, answers = time.perf_counter(), []
            for batch in loader:
                found, label = model(batch["image"]), batch["label"]
                nn.functional.cross_entropy(found, label).backward()
                optimiser.step()
                optimiser.zero_grad()
                answers.append(found.argmax(1) == label)
            right = torch.cat(answers).float().mean().item()
            print(f"epoch {epoch}: {right:.1%} right, {time.perf_counter() - began:.2f} s")
    return right


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
