"""Accelerate: gradients accumulated, a state saved in the middle of an epoch, metrics gathered.

usage: gdsload demo --keep digits/ && accelerate launch examples/train_accelerate.py digits/ state/
"""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from digits_model import network, parts
from torch import nn

import gdsload
from gdsload.integrations.accelerate import prepare


def main(path: str, folder: str) -> None:
    """Train, go back to the saved state once, and evaluate."""
    accelerator = Accelerator(gradient_accumulation_steps=2)
    train, test = parts(path)
    loader = prepare(accelerator, gdsload.DataLoader(train, 32, shuffle=True, device=accelerator.device))
    held_out = prepare(accelerator, gdsload.DataLoader(test, 30, tail="pad", device=accelerator.device))
    model = network()
    model, optimiser = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=3e-3))

    def epoch(stop: int | None = None) -> None:
        for step, batch in enumerate(loader, 1):
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(batch["image"]), batch["label"]))
                optimiser.step()
                optimiser.zero_grad()
            if step == stop:
                accelerator.save_state(folder)

    epoch(stop=8)
    accelerator.load_state(folder)
    for _ in range(12):  # the first of these is the rest of the first epoch
        epoch()
    right = []
    with torch.inference_mode():
        for batch in held_out:
            guessed = model(batch["image"]).argmax(1) == batch["label"]
            right.append(accelerator.gather_for_metrics(guessed))
    right = torch.cat(right).double()
    accelerator.print(f"accuracy {right.mean():.3f} of {len(right)}, {loader.loader.stats.batches} batches")
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
