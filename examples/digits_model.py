"""What the examples of frameworks share: a small network, the two parts of the digits, and how many it reads right.

`gdsload demo --keep digits/` writes the shards: 1797 images of 8 by 8 pixels.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import Subset, random_split

import gdsload


def network() -> nn.Module:
    """Images [batch, 1, 8, 8] to logits [batch, 10]."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def parts(path: str) -> tuple[Subset[object], Subset[object]]:
    """Four fifths to train with, and the rest."""
    train, test = random_split(gdsload.ShardDataset(path), [0.8, 0.2], torch.Generator().manual_seed(0))
    return train, test


@torch.inference_mode()
def accuracy(model: nn.Module, path: str, device: str | torch.device | None = None) -> float:
    """Share of the held-out digits that a network on a device reads right."""
    with gdsload.DataLoader(parts(path)[1], 256, device=device) as loader:
        right = [model(batch["image"]).argmax(1) == batch["label"] for batch in loader]
    return torch.cat(right).double().mean().item()
