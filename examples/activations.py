"""Train a sparse autoencoder on activations of a model: rows of 4 KiB, which the loader shuffles fully.

usage: python examples/activations.py FOLDER [ROWS]

The model predicts a byte of Python's documentation from the 16 bytes before it. An activation is the model's
hidden layer, 1024 floats. 65 536 rows are 256 MiB.
"""

import sys
import time
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn

import gdsload

CONTEXT, HIDDEN = 16, 1024


def write(folder: Path, rows: int) -> None:
    """Train the model for 100 steps, and write the hidden layer for `rows` positions of the text."""
    places = torch.frombuffer(bytearray("\n".join(topics.values()).encode()), dtype=torch.uint8).unfold(
        0, CONTEXT + 1, 1
    )
    body = nn.Sequential(nn.Embedding(256, 16), nn.Flatten(), nn.Linear(CONTEXT * 16, HIDDEN), nn.ReLU())
    model = nn.Sequential(body, nn.Linear(HIDDEN, 256))
    optimiser = torch.optim.AdamW(model.parameters(), 2e-3)
    for _ in range(100):
        batch = places[torch.randint(len(places), (256,))].long()
        nn.functional.cross_entropy(model(batch[:, :-1]), batch[:, -1]).backward()
        optimiser.step()
        optimiser.zero_grad()
    with torch.inference_mode(), gdsload.ShardWriter(folder) as writer:
        for chosen in torch.randperm(len(places))[:rows].split(4096):
            writer.write_batch({"activation": body(places[chosen, :-1].long())})


class Autoencoder(nn.Module):
    """Reconstructs activations [batch, 1024] from 32 of its features each."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(HIDDEN, features), nn.Linear(features, HIDDEN)
        self.encode.weight.data = self.decode.weight.data.T.clone()

    def forward(self, activations: Tensor) -> Tensor:
        found = self.encode(activations - self.decode.bias).relu()
        largest = found.topk(32)
        return self.decode(torch.zeros_like(found).scatter(1, largest.indices, largest.values))


def main(path: str, rows: int = 65_536, features: int = 4096, epochs: int = 4) -> float:
    """Train, and return the share of the activations' variance that the features explain in the last epoch."""
    write(Path(path) / "shards", rows)
    with gdsload.DataLoader(Path(path) / "shards", 256, shuffle="full", drop_last=True) as loader:
        model = Autoencoder(features).to(loader.device)
        optimiser = torch.optim.Adam(model.parameters(), 1e-3)
        for epoch in range(epochs):
            missed = total = torch.zeros((), device=loader.device)
            for batch in loader:
                given = batch["activation"]
                error = (model(given) - given).square().sum()
                optimiser.zero_grad()
                (error / given.numel()).backward()
                optimiser.step()
                missed, total = missed + error.detach(), total + (given - given.mean(0)).square().sum()
            print(f"epoch {epoch}: {1 - missed / total:.1%} of the variance")
        began = time.perf_counter()
        count = sum(len(batch["activation"]) for batch in loader)
        print(f"the loader alone: {count / (time.perf_counter() - began):.3g} rows/s to {loader.device}")
    return float(1 - missed / total)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:])) if sys.argv[1:] else sys.exit(__doc__)
