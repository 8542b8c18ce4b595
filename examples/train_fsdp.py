"""FSDP2, with weights, optimiser and loader in a distributed checkpoint.

usage: gdsload demo --keep digits/ && torchrun --nproc-per-node 2 examples/train_fsdp.py digits/ checkpoint/
"""

import sys
from itertools import islice

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from digits_model import accuracy, adam, network, parts, train
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import gdsload


def main(path: str, folder: str) -> None:
    """Train ten steps and save; then load, and train the rest of that epoch and eleven more."""
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    for resumed in (False, True):
        loader = gdsload.DataLoader(parts(path)[0], 32, shuffle=True)
        optimiser = adam(model := fully_shard(network().to(loader.device)))
        weights, moments = get_state_dict(model, optimiser)
        if resumed:
            dcp.load({"model": weights, "optimiser": moments, "loader": loader}, checkpoint_id=folder)
            set_state_dict(model, optimiser, model_state_dict=weights, optim_state_dict=moments)
            while loader.epoch < 12:
                train(model, optimiser, loader)
        else:
            train(model, optimiser, islice(loader, 10))
            weights, moments = get_state_dict(model, optimiser)
            dcp.save({"model": weights, "optimiser": moments, "loader": loader}, checkpoint_id=folder)
    print(f"accuracy {accuracy(model, path):.3f} of this rank's digits, {loader.stats.batches} batches")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:]) if sys.argv[1:] else sys.exit(__doc__)
