"""DistributedDataParallel: each process gets its share of every global batch.

usage: gdsload demo --keep digits/ && torchrun --nproc-per-node 2 examples/train_ddp.py digits/
"""

import os
import sys

import torch
import torch.distributed as dist
from digits_model import accuracy, adam, network, parts, train
from torch import nn

import gdsload


def main(path: str) -> None:
    """Train, on GPUs if there are any, and count the uses of each sample."""
    a_gpu_each = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    dist.init_process_group("nccl" if a_gpu_each else "gloo")
    with gdsload.DataLoader(parts(path)[0], 32, shuffle=True, with_index=True) as loader:  # on LOCAL_RANK's GPU
        if loader.device.type == "cuda":
            torch.cuda.set_device(loader.device)
        model = nn.parallel.DistributedDataParallel(network().to(loader.device))
        optimiser, seen = adam(model), torch.zeros(len(loader.dataset), dtype=torch.int64)
        for _ in range(12):
            for batch in loader:
                seen[batch["index"]] += 1
                train(model, optimiser, [batch])
    seen = seen.to(loader.device)
    dist.all_reduce(seen)
    said = f"accuracy {accuracy(model.module, path, loader.device):.3f}, each sample {seen.min()} times"
    if dist.get_rank() == 0:
        print(f"{said}, {int((seen > seen.min()).sum())} once more, by {dist.get_backend()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:]) if sys.argv[1:] else sys.exit(__doc__)
