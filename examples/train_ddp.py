"""DistributedDataParallel: each process gets its share of every global batch.

usage: gdsload demo --keep digits/ && torchrun --nproc-per-node 2 examples/train_ddp.py digits/
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from digits_model import accuracy, network, parts
from torch import nn

import gdsload


def main(path: str) -> None:
    """Train, on GPUs if there are any."""
    a_gpu_each = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    dist.init_process_group("nccl" if a_gpu_each else "gloo")
    with gdsload.DataLoader(parts(path)[0], 32, shuffle=True, with_index=True) as loader:  # on LOCAL_RANK's GPU
        device = loader.device
        if device.type == "cuda":
            torch.cuda.set_device(device)
        model = nn.parallel.DistributedDataParallel(network().to(device))
        optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
        seen = torch.zeros(len(loader.dataset), dtype=torch.int64)
        for _ in range(12):
            for batch in loader:
                seen[batch["index"]] += 1
                loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
    seen = seen.to(device)
    dist.all_reduce(seen)
    right = accuracy(model.module, path, device)
    if dist.get_rank() == 0:
        twice = int((seen > seen.min()).sum())
        found = f"accuracy {right:.3f}, each sample {seen.min()} times"
        print(f"{found}, {twice} once more, by {dist.get_backend()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
