"""A compiled training step, and augmentation ahead of it on the device.

usage: gdsload demo --keep digits/ && python examples/train_compiled.py digits/ [BACKEND]
"""

import sys

import torch
from digits_model import accuracy, adam, loss_of, network, parts

import gdsload
from gdsload.transforms import RandomCrop


def main(path: str, backend: str = "inductor") -> None:
    """Train; ``drop_last=True`` keeps one shape, so that nothing is compiled twice."""
    crop = RandomCrop("image", 8, padding=1)
    with gdsload.DataLoader(parts(path)[0], 64, shuffle=True, drop_last=True, device_transform=crop) as loader:
        model = network().to(loader.device)
        optimiser, step = adam(model), torch.compile(loss_of, backend=backend)
        for _ in range(40):
            for batch in loader:
                optimiser.zero_grad()
                step(model, batch).backward()
                optimiser.step()
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]  # noqa: SLF001 (nothing else counts them)
        print(f"accuracy {accuracy(model, path, loader.device):.3f}, {graphs} graphs")


if __name__ == "__main__":
    main(*sys.argv[1:]) if sys.argv[1:] else sys.exit(__doc__)
