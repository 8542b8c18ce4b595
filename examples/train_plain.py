"""A plain loop, stopped in the middle of an epoch and gone on with.

usage: gdsload demo --keep digits/ && python examples/train_plain.py digits/
"""

from __future__ import annotations

import itertools
import sys

import torch
from digits_model import accuracy, network, parts
from torch import nn

import gdsload


def train(loader: gdsload.DataLoader, model: nn.Module, epochs: int, steps: int | None = None) -> None:
    """Train up to an epoch, or for some steps."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(loader.epoch, epochs):
        loader.set_epoch(epoch)
        for batch in itertools.islice(loader, steps):
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        if steps is not None:
            return


def main(path: str) -> None:
    """Ten steps; then the rest of that epoch and the others, with another loader."""
    data = parts(path)[0]
    with gdsload.DataLoader(data, 64, shuffle=True) as loader:
        model = network().to(loader.device)
        train(loader, model, epochs=1, steps=10)
        state = loader.state_dict()  # small and JSON-able: keep it beside the weights
    with gdsload.DataLoader(data, 64, shuffle=True) as loader:
        loader.load_state_dict(state)
        train(loader, model, epochs=12)
        print(f"accuracy {accuracy(model, path, loader.device):.3f}, {loader.stats.batches} batches")


if __name__ == "__main__":
    main(*sys.argv[1:])
