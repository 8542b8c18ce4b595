"""Write shards, train from them, stop in the middle of an epoch, and resume.

usage: python examples/train.py FOLDER
"""

import json
import os
import sys

import torch
from torch import nn

import gdsload


def write(path: str) -> None:
    """Write a dataset of 4096 noisy points on a line."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(4096, 1, generator=generator)
    y = 3 * x + 1 + 0.01 * torch.randn(4096, 1, generator=generator)
    with gdsload.ShardWriter(path, shard_bytes="16KiB") as writer:
        writer.write_batch({"x": x, "y": y})


def train(loader: gdsload.DataLoader, model: nn.Module, steps: int) -> None:
    """Train for some steps, over as many epochs as needed."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    while True:
        for batch in loader:
            loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            steps -= 1
            if not steps:
                return


def main(folder: str) -> None:
    """Write, train, stop, and resume."""
    path = os.path.join(folder, "line")
    write(path)
    model = nn.Linear(1, 1)
    with gdsload.DataLoader(path, 64, shuffle=True, device="cpu") as loader:
        train(loader, model, 100)
        with open(os.path.join(folder, "state.json"), "w") as file:
            json.dump(loader.state_dict(), file)
    with gdsload.DataLoader(path, 64, shuffle=True, device="cpu") as loader:
        with open(os.path.join(folder, "state.json")) as file:
            loader.load_state_dict(json.load(file))
        train(loader, model, 300)
        print(f"y = {model.weight.item():.2f} x + {model.bias.item():.2f}, epoch {loader.epoch}")


if __name__ == "__main__":
    main(sys.argv[1]) if sys.argv[1:] else sys.exit(__doc__)
