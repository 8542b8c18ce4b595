"""Accelerate: gradients accumulated, a state saved in the middle of an epoch, metrics gathered.

usage: gdsload demo --keep digits/ && accelerate launch examples/train_accelerate.py digits/ state/
"""

import sys
from itertools import islice

import torch
from accelerate import Accelerator
from digits_model import adam, loss_of, network, parts, right

import gdsload
from gdsload.integrations.accelerate import prepare


def main(path: str, folder: str) -> None:
    """Save after eight steps, resume from the state, and evaluate."""
    accelerator = Accelerator(gradient_accumulation_steps=2)
    train, test = parts(path)
    loader = prepare(accelerator, gdsload.DataLoader(train, 32, shuffle=True, device=accelerator.device))
    held_out = prepare(accelerator, gdsload.DataLoader(test, 30, tail="pad", device=accelerator.device))
    model = network()
    model, optimiser = accelerator.prepare(model, adam(model))
    for steps in (8, *[None] * 12):  # the first whole one is the rest of the first epoch
        for batch in islice(loader, steps):
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch))
                optimiser.step()
                optimiser.zero_grad()
        if steps:
            accelerator.save_state(folder)
            accelerator.load_state(folder)
    found = torch.cat([accelerator.gather_for_metrics(right(model, batch)) for batch in held_out]).double()
    accelerator.print(f"accuracy {found.mean():.3f} of {len(found)}, {loader.loader.stats.batches} batches")
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:]) if sys.argv[1:] else sys.exit(__doc__)
