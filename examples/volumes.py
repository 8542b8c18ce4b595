"""Train a small 3D U-Net on crops of volumes, as in MLPerf's unet3d: each large sample is read whole, then cropped.

usage: python examples/volumes.py FOLDER [COUNT] [SIDE]

The volumes are generated: a random ellipsoid in noise, whose voxels the network has to find. By default each volume
has 128 x 128 x 128 float16 values, 4 MiB, and a mask of 2 MiB.
"""

import sys

import numpy as np
import torch
from torch import Tensor, nn

import gdsload


def write(path: str, count: int, side: int) -> None:
    """Write the volumes and their masks; the seed of each volume is its number."""
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, side, dtype=np.float32)] * 3, indexing="ij"))
    with gdsload.ShardWriter(path) as writer:
        for number in range(count):
            random = np.random.default_rng(number)
            centre, axes = random.uniform(-0.4, 0.4, (3, 1, 1, 1)), random.uniform(0.3, 0.7, (3, 1, 1, 1))
            mask = (((grid - centre) / axes) ** 2).sum(0) < 1
            volume = mask * random.uniform(0.5, 1.5) + random.normal(0, 0.5, mask.shape)
            writer.write({"volume": volume[None].astype(np.float16), "mask": mask[None]})


def crop(batch: dict[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    """Crop half of each side, at the same random position in volume and mask."""
    half = batch["mask"].shape[-1] // 2
    x, y, z = torch.randint(half + 1, (3,), generator=generator, device=generator.device).tolist()
    return {name: field[..., x : x + half, y : y + half, z : z + half] for name, field in batch.items()}


class UNet(nn.Module):
    """A network of two levels: volumes [batch, 1, x, y, z] to logits of the same shape."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv3d(1, width, 3, padding=1), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv3d(width, 2 * width, 3, 2, padding=1), nn.ReLU(), nn.Upsample(scale_factor=2))
        self.up = nn.Conv3d(3 * width, 1, 3, padding=1)

    def forward(self, volumes: Tensor) -> Tensor:
        fine = self.down(volumes)
        return self.up(torch.cat([fine, self.deep(fine)], 1))


def main(path: str, count: int = 64, side: int = 128, epochs: int = 4) -> float:
    """Train, and return the Dice score of the masks in the last epoch."""
    write(path, count, side)
    with gdsload.DataLoader(path, 2, shuffle=True, device_transform=crop) as loader:
        model = UNet().to(loader.device)
        optimiser = torch.optim.Adam(model.parameters(), 1e-2)
        for epoch in range(epochs):
            dice = []
            for batch in loader:
                logits, mask = model(batch["volume"].float()), batch["mask"].float()
                nn.functional.binary_cross_entropy_with_logits(logits, mask).backward()
                optimiser.step()
                optimiser.zero_grad()
                found = (logits.detach() > 0).float()
                dice.append(2 * (found * mask).sum() / (found.sum() + mask.sum()).clamp(min=1))
            print(f"epoch {epoch}: Dice {torch.stack(dice).mean():.3f}")
    return float(torch.stack(dice).mean())


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:])) if sys.argv[1:] else sys.exit(__doc__)
