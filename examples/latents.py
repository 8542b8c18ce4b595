"""Train a diffusion model on latents: images are encoded once, and every epoch reads their latents.

usage: gdsload demo --keep digits/ && python examples/latents.py digits/ latents/

The encoder is a projection of scikit-learn's digits to 16 numbers. The model is a flow: it learns the velocity from
noise to the latents of a given digit.
"""

import sys

import torch
from torch import Tensor, nn

import gdsload

SIZE = 16


def encode(digits: str, out: str) -> tuple[Tensor, Tensor]:
    """Write latents in bfloat16 with their labels. Returns the mean and the directions, which decode them."""
    dataset = gdsload.ShardDataset(digits)
    images, labels = dataset.column("image").flatten(1).float(), dataset.column("label")
    mean = images.mean(0)
    directions = torch.pca_lowrank(images - mean, SIZE, center=False)[2]
    directions = directions * ((images - mean) @ directions).std(0)
    latents = (images - mean) @ torch.linalg.pinv(directions).T
    with gdsload.ShardWriter(out) as writer:
        writer.write_batch({"latent": latents.bfloat16(), "label": labels})
    return mean, directions


class Flow(nn.Module):
    """Velocities of latents [batch, 16] at times [batch, 1], for digits [batch]."""

    def __init__(self) -> None:
        super().__init__()
        self.digits = nn.Embedding(10, 32)
        self.layers = nn.Sequential(
            nn.Linear(SIZE + 33, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, SIZE)
        )

    def forward(self, latents: Tensor, times: Tensor, digits: Tensor) -> Tensor:
        return self.layers(torch.cat([latents, times, self.digits(digits)], 1))


@torch.inference_mode()
def draw(flow: Flow, digits: Tensor, steps: int = 20) -> Tensor:
    """Draw latents of the given digits, from noise."""
    latents = torch.randn(len(digits), SIZE, device=digits.device)
    for step in range(steps):
        times = torch.full((len(digits), 1), step / steps, device=digits.device)
        latents = latents + flow(latents, times, digits) / steps
    return latents


def main(digits: str, out: str, epochs: int = 60) -> tuple[Tensor, Tensor]:
    """Train, and return 8 generated images of each digit, [80, 64], and their digits [80]."""
    mean, directions = encode(digits, out)
    with gdsload.DataLoader(out, 128, shuffle=True) as loader:
        flow = Flow().to(loader.device)
        optimiser = torch.optim.Adam(flow.parameters(), 2e-3)
        for _ in range(epochs):
            for batch in loader:
                latents = batch["latent"].float()
                noise, times = torch.randn_like(latents), torch.rand(len(latents), 1, device=latents.device)
                found = flow(noise + times * (latents - noise), times, batch["label"])
                loss = (found - (latents - noise)).square().mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        print(f"loss {loss:.3f}, {loader.stats.samples} latents")
        wanted = torch.arange(10, device=loader.device).repeat(8)
        return mean + draw(flow, wanted).cpu() @ directions.T, wanted.cpu()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    for image in main(*sys.argv[1:])[0][:10].reshape(-1, 8, 8):
        print("\n".join("".join(" .:*#"[int(one)] for one in row) for row in (image * 4).clamp(0, 4)), end="\n\n")
