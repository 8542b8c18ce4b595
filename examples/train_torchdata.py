"""torchdata: a loader as the source of nodes, and a dataset of shards in its StatefulDataLoader.

usage: gdsload demo --keep digits/ && python examples/train_torchdata.py digits/
"""

import sys
from itertools import islice

from digits_model import accuracy, adam, network, parts, train
from torchdata.nodes import IterableWrapper, Loader, Mapper
from torchdata.stateful_dataloader import StatefulDataLoader

import gdsload


def nodes(path: str) -> Loader:
    """Nodes that brighten batches of the training part on the CPU; their state contains the loader's."""
    source = gdsload.DataLoader(parts(path)[0], 64, shuffle=True, device="cpu")
    return Loader(Mapper(IterableWrapper(source), lambda batch: {**batch, "image": batch["image"] * 1.1}))


def main(path: str) -> None:
    """Train with nodes, and resume once; then read the samples with torchdata's own loader."""
    loader, resumed = nodes(path), nodes(path)
    batches = iter(loader)
    list(islice(batches, 10))
    resumed.load_state_dict(loader.state_dict())
    rest, again = ([batch["label"].tolist() for batch in each] for each in (batches, resumed))
    model = network()
    optimiser = adam(model)
    for _ in range(12):
        train(model, optimiser, resumed)
    samples = sum(len(batch["label"]) for batch in StatefulDataLoader(gdsload.ShardDataset(path), 256))
    print(f"accuracy {accuracy(model, path, 'cpu'):.3f}, resumed exactly: {again == rest}, {samples} samples read")


if __name__ == "__main__":
    main(*sys.argv[1:]) if sys.argv[1:] else sys.exit(__doc__)
