"""torchdata: a loader as the source of nodes, and a dataset of shards in its StatefulDataLoader.

usage: gdsload demo --keep digits/ && python examples/train_torchdata.py digits/
"""

from __future__ import annotations

import sys

import torch
from digits_model import accuracy, network, parts
from torch import Tensor, nn
from torchdata.nodes import IterableWrapper, Loader, Mapper
from torchdata.stateful_dataloader import StatefulDataLoader

import gdsload


def brighter(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """What a node does to a batch."""
    return {**batch, "image": batch["image"] * 1.1}


def nodes(path: str) -> Loader:
    """Batches of the training part; the state of the nodes has the loader's."""
    source = gdsload.DataLoader(parts(path)[0], 64, shuffle=True)
    return Loader(Mapper(IterableWrapper(source), brighter))


def main(path: str) -> None:
    """Train with nodes, resumed once; then look at the samples with torchdata's own loader."""
    loader = nodes(path)
    batches = iter(loader)
    for _ in range(10):
        next(batches)
    state = loader.state_dict()
    rest = [batch["label"].tolist() for batch in batches]
    loader = nodes(path)
    loader.load_state_dict(state)
    exact = [batch["label"].tolist() for batch in loader] == rest
    model = network()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(12):
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["image"].cpu()), batch["label"].cpu())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    samples = sum(len(batch["label"]) for batch in StatefulDataLoader(gdsload.ShardDataset(path), 256))
    print(f"accuracy {accuracy(model, path, 'cpu'):.3f}, resumed exactly: {exact}, {samples} samples read")


if __name__ == "__main__":
    main(*sys.argv[1:])
