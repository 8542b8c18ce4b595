"""A training step that is captured in a CUDA graph, which finds each batch in the same tensors.

usage: gdsload demo --keep digits/ && python examples/train_cuda_graph.py digits/
"""

from __future__ import annotations

import sys

import torch
from digits_model import accuracy, network, parts
from torch import Tensor, nn

import gdsload


def main(path: str) -> None:
    """Three steps as usual, then the captured one for each batch."""
    options = {"shuffle": True, "drop_last": True, "reuse_buffers": True, "device": "cuda"}
    with gdsload.DataLoader(parts(path)[0], 64, **options) as loader:
        model = network().cuda()
        optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, capturable=True)

        def step(batch: dict[str, Tensor]) -> None:
            optimiser.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(batch["image"]), batch["label"]).backward()
            optimiser.step()

        batches = iter(loader)
        batch, side = next(batches), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step(batch)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            step(batch)
        graph.replay()
        for _ in batches:
            graph.replay()
        for _ in range(11):
            for _ in loader:
                graph.replay()
        print(f"accuracy {accuracy(model, path, 'cuda'):.3f}, {loader.stats.batches} batches")


if __name__ == "__main__":
    main(*sys.argv[1:])
