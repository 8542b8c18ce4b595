"""FSDP2, with weights, optimiser and loader in a distributed checkpoint.

usage: gdsload demo --keep digits/ && torchrun --nproc-per-node 2 examples/train_fsdp.py digits/ checkpoint/
"""

from __future__ import annotations

import sys
from itertools import islice

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from digits_model import accuracy, network, parts
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import gdsload


class Run:
    """A model with its optimiser, as `dcp` saves them, and a loader, which it saves as it is."""

    def __init__(self, path: str) -> None:
        self.loader = gdsload.DataLoader(parts(path)[0], 32, shuffle=True)
        self.model = fully_shard(network().to(self.loader.device))
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=3e-3)

    def state_dict(self) -> dict[str, object]:
        return dict(zip(("model", "optimiser"), get_state_dict(self.model, self.optimiser), strict=True))

    def load_state_dict(self, state: dict[str, dict[str, object]]) -> None:
        set_state_dict(self.model, self.optimiser, model_state_dict=state["model"], optim_state_dict=state["optimiser"])

    def train(self, steps: int | None = None) -> None:
        for batch in islice(self.loader, steps):
            loss = nn.functional.cross_entropy(self.model(batch["image"]), batch["label"])
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()


def main(path: str, folder: str) -> None:
    """Ten steps, and the rest of that epoch and the others with what was made of their checkpoint."""
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    first, second = Run(path), Run(path)
    first.train(10)
    dcp.save({"run": first, "loader": first.loader}, checkpoint_id=folder)
    dcp.load({"run": second, "loader": second.loader}, checkpoint_id=folder)
    while second.loader.epoch < 12:
        second.train()
    found = f"accuracy {accuracy(second.model, path):.3f} of this rank's digits"
    print(f"{found}, {second.loader.stats.batches} batches")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
