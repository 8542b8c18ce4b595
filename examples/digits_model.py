"""Shared code of the framework examples: a small network, its training step, two parts of the digits, and a score.

`gdsload demo --keep digits/` writes the shards: 1797 images of 8 by 8 pixels.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.utils.data import Subset, random_split

import gdsload


def network() -> nn.Module:
    """Images [batch, 1, 8, 8] to logits [batch, 10]."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of all examples."""
    return torch.optim.AdamW(model.parameters(), lr=3e-3)


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The loss of a batch, a scalar."""
    return nn.functional.cross_entropy(model(batch["image"]), batch["label"])


def train(model: nn.Module, optimiser: torch.optim.Optimizer, batches: Iterable[dict[str, Tensor]]) -> None:
    """Train on each batch."""
    for batch in batches:
        optimiser.zero_grad()
        loss_of(model, batch).backward()
        optimiser.step()


def parts(path: str) -> tuple[Subset[object], Subset[object]]:
    """Split the dataset into four fifths for training, and the rest."""
    train, test = random_split(gdsload.ShardDataset(path), [0.8, 0.2], torch.Generator().manual_seed(0))
    return train, test


def right(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Mark the samples of a batch that a network classifies correctly: bool [batch]."""
    with torch.inference_mode():
        return model(batch["image"]).argmax(1) == batch["label"]


def accuracy(model: nn.Module, path: str, device: str | torch.device | None = None) -> float:
    """The share of the held-out digits that a network classifies correctly on a device."""
    with gdsload.DataLoader(parts(path)[1], 256, device=device) as loader:
        return torch.cat([right(model, batch) for batch in loader]).double().mean().item()
