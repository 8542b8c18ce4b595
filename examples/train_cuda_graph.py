"""A training step in a CUDA graph, with every batch in the same tensors.

usage: gdsload demo --keep digits/ && python examples/train_cuda_graph.py digits/
"""

import sys

import torch
from digits_model import accuracy, network, parts, train

import gdsload


def main(path: str) -> None:
    """Run three warm-up steps on another stream, as a capture requires; then replay the captured step on each batch."""
    options = {"shuffle": True, "drop_last": True, "reuse_buffers": True, "device": "cuda"}
    with gdsload.DataLoader(parts(path)[0], 64, **options) as loader:
        model, graph, side = network().cuda(), torch.cuda.CUDAGraph(), torch.cuda.Stream()
        optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, capturable=True)
        batches = iter(loader)
        batch = next(batches)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            train(model, optimiser, [batch] * 3)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            train(model, optimiser, [batch])
        graph.replay()
        for each in (batches, *[loader] * 11):
            for _ in each:
                graph.replay()
        print(f"accuracy {accuracy(model, path, 'cuda'):.3f}, {loader.stats.batches} batches")


if __name__ == "__main__":
    main(*sys.argv[1:]) if sys.argv[1:] else sys.exit(__doc__)
