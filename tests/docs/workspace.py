"""The names that the code of documents uses without making them: a folder of datasets and sources, and stand-ins."""

import os
import wave
from itertools import cycle

import numpy as np
import torch
from torch import nn

import gdsload

SAMPLES = 300


def prepare(folder):
    """The datasets and sources that pages read."""
    seeded = torch.Generator().manual_seed(1)
    plain = {
        "image": torch.randint(0, 256, (SAMPLES, 3, 32, 32), dtype=torch.uint8, generator=seeded),
        "label": torch.arange(SAMPLES) % 10,
        "score": torch.rand(SAMPLES, generator=seeded),
        "x": torch.rand(SAMPLES, 4, generator=seeded),
        "tokens": [torch.arange(1 + number % 7, dtype=torch.int32) for number in range(SAMPLES)],
        "caption": [str(number) for number in range(SAMPLES)],
    }
    for name in ("shards", "january", "february", "web", "code"):
        write(folder / name, plain)
    steps = {"episode": torch.arange(SAMPLES) // 100, "task": torch.arange(SAMPLES)}
    write(folder / "steps", steps | {name: torch.rand(SAMPLES, 4) for name in ("pixels", "action", "state")})
    write(folder / "clips", {"tokens": torch.arange(SAMPLES).to(torch.uint16)})
    (folder / "arrays").mkdir()
    np.save(folder / "arrays/x.npy", plain["x"].numpy())
    np.save(folder / "arrays/label.npy", plain["label"].numpy())
    np.save(folder / "x.npy", plain["x"].numpy())
    np.arange(SAMPLES, dtype="uint16").tofile(folder / "train.bin")
    (folder / "table.csv").write_text("zip,n\n01234,1\n99999,2\n")
    (folder / "lines.jsonl").write_text("[1, 2, 3]\n[4]\n")
    (folder / "corpus.txt").write_text("one\ntwo\n")
    (folder / "own.py").write_text("def scaled(sample):\n    return {**sample, 'x': sample['x'] / 255}\n")
    (folder / "speech").mkdir()
    with wave.open(str(folder / "speech/a.wav"), "wb") as sound:
        sound.setnchannels(1), sound.setsampwidth(2), sound.setframerate(8000)
        sound.writeframes(bytes(1600))
    pictures(folder)


def pictures(folder):
    """Pictures in a folder for each class, and a dataset that has kept them as files."""
    from PIL import Image

    for name in ("cat", "dog"):
        (folder / "pictures" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (40, 30), (number * 40, 9, 9)).save(folder / "pictures" / name / f"{number}.jpg")
    gdsload.convert(folder / "pictures", folder / "photos", keep_encoded=True, workers=1)


def write(path, batch):
    with gdsload.ShardWriter(path) as writer:
        writer.write_batch(batch)


class Model(nn.Linear):
    def __init__(self):
        super().__init__(3 * 32 * 32, 10)

    def forward(self, image, label=None):
        return super().forward(image.flatten(1).to(self.weight))


def stand_ins():
    """The names that pages take from the reader's program; the working folder is that of `prepare`."""
    dataset = gdsload.ShardDataset("shards")
    picture = dataset[0]["image"]
    found = {
        "gdsload": gdsload, "torch": torch, "np": np, "os": os, "dataset": dataset, "device": "cpu",
        "loader": gdsload.DataLoader(dataset, 2), "indices": torch.arange(20), "weights": torch.ones(SAMPLES),
        "image": picture, "images": picture[None], "labels": [1], "captions": ["a dog"],
        "model": Model(), "optimiser": nn.Linear(1, 1), "path": "last.pt",
        "train": lambda *batch: None, "step": lambda *batch: None, "time_to_save": cycle([True] + [False] * 30).__next__,
        "block_size": 8, "steps": 4, "mean": (0.5, 0.5, 0.5), "std": (0.2, 0.2, 0.2),
    }  # fmt: skip
    found["batches_of_like_length"] = torch.utils.data.BatchSampler(range(SAMPLES), 8, drop_last=False)
    return found
