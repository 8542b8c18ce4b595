"""A plain loop, stopped in the middle of an epoch and resumed.

usage: gdsload demo --keep digits/ && python examples/train_plain.py digits/
"""

import sys
from itertools import islice

from digits_model import accuracy, adam, loss_of, network, parts

import gdsload


def main(path: str) -> None:
    """Train ten steps; then the rest of that epoch and eleven more, with another loader."""
    data, model = parts(path)[0], network()
    with gdsload.DataLoader(data, 64, shuffle=True) as loader:
        model.to(loader.device)
        optimiser = adam(model)
        for batch in islice(loader, 10):
            loss_of(model, batch).backward()
            optimiser.step()
            optimiser.zero_grad()
        state = loader.state_dict()  # small and JSON-able: keep it beside the weights
    with gdsload.DataLoader(data, 64, shuffle=True) as loader:
        loader.load_state_dict(state)
        for epoch in range(loader.epoch, 12):
            loader.set_epoch(epoch)
            for batch in loader:
                loss_of(model, batch).backward()
                optimiser.step()
                optimiser.zero_grad()
        print(f"accuracy {accuracy(model, path, loader.device):.3f}, {loader.stats.batches} batches")


if __name__ == "__main__":
    main(*sys.argv[1:]) if sys.argv[1:] else sys.exit(__doc__)
