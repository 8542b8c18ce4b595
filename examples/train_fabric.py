"""Lightning Fabric: the loader stays as it is, without `setup_dataloaders`, and is saved with the model.

usage: gdsload demo --keep digits/ && python examples/train_fabric.py digits/ fabric.ckpt
"""

import sys
from itertools import islice

from digits_model import accuracy, adam, loss_of, network, parts
from lightning_fabric import Fabric

import gdsload


def main(path: str, file: str) -> None:
    """Train ten steps and save; then load, and train the rest of that epoch and eleven more."""
    fabric = Fabric(devices=1)
    fabric.launch()
    for resumed in (False, True):
        loader = gdsload.DataLoader(parts(path)[0], 64, shuffle=True, device=fabric.device)
        model = network()
        model, optimiser = fabric.setup(model, adam(model))
        state = {"model": model, "optimiser": optimiser, "loader": loader}
        if resumed:
            fabric.load(file, state)
        for epoch in range(loader.epoch, 12 if resumed else 1):
            loader.set_epoch(epoch)
            for batch in islice(loader, None if resumed else 10):
                optimiser.zero_grad()
                fabric.backward(loss_of(model, batch))
                optimiser.step()
        if not resumed:
            fabric.save(file, state)
    print(f"accuracy {accuracy(model, path, fabric.device):.3f}, {loader.stats.batches} batches")


if __name__ == "__main__":
    main(*sys.argv[1:]) if sys.argv[1:] else sys.exit(__doc__)
