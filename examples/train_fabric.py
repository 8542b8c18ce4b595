"""Lightning Fabric: the loader stays as it is, without `setup_dataloaders`, and is saved with the model.

usage: gdsload demo --keep digits/ && python examples/train_fabric.py digits/ fabric.ckpt
"""

from __future__ import annotations

import sys

import torch
from digits_model import accuracy, network, parts
from lightning_fabric import Fabric
from torch import nn

import gdsload


def main(path: str, file: str) -> None:
    """Train, and go on from a file in the middle of an epoch."""
    fabric = Fabric(devices=1)
    fabric.launch()
    for resumed in (False, True):
        loader = gdsload.DataLoader(parts(path)[0], 64, shuffle=True, device=fabric.device)
        model = network()
        model, optimiser = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=3e-3))
        state = {"model": model, "optimiser": optimiser, "loader": loader}
        if resumed:
            fabric.load(file, state)
        for epoch in range(loader.epoch, 12):
            loader.set_epoch(epoch)
            for step, batch in enumerate(loader, loader.step):
                loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
                optimiser.zero_grad()
                fabric.backward(loss)
                optimiser.step()
                if step == 9 and not resumed:
                    fabric.save(file, state)
                    break
            if not resumed:
                break
    print(f"accuracy {accuracy(model, path, fabric.device):.3f}, {loader.stats.batches} batches")


if __name__ == "__main__":
    main(*sys.argv[1:])
