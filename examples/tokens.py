"""Train a small language model on windows of one long row of tokens: the bytes of Python's own documentation.

usage: python examples/tokens.py FOLDER [STEPS]
"""

import sys
from itertools import chain, islice, repeat
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from torch import Tensor, nn

import gdsload
from gdsload.transforms import Cast

LENGTH, WIDTH = 32, 64


class Model(nn.Module):
    """Two layers of causal attention: bytes [batch, n] to logits [batch, n, 256]."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.bytes(tokens) + self.places.weight
        return self.head(self.layers(states, self.mask, is_causal=True))


def main(path: str, steps: int = 1000) -> float:
    """Train, and return the bits per byte over the last tenth of the steps."""
    folder, text = Path(path), "\n".join(topics.values()).encode()
    folder.mkdir(parents=True, exist_ok=True)
    np.frombuffer(text, np.uint8).tofile(folder / "text.bin")
    gdsload.convert(folder / "text.bin", folder / "tokens", dtype="uint8", workers=1)
    windows = gdsload.Windows(folder / "tokens", LENGTH + 1)  # one begins at every byte, and nothing is copied on disk
    losses = []
    with gdsload.DataLoader(windows, 32, shuffle=True, device_transform=Cast("tokens", "int64")) as loader:
        model = Model().to(loader.device)
        optimiser = torch.optim.AdamW(model.parameters(), 2e-3)
        for batch in islice(chain.from_iterable(repeat(loader)), steps):
            logits = model(batch["tokens"][:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch["tokens"][:, 1:].flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
    bits = torch.stack(losses[-max(steps // 10, 1) :]).mean().item() / np.log(2)
    print(f"{len(windows)} windows, {bits:.2f} bits a byte")
    return float(bits)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:])) if sys.argv[1:] else sys.exit(__doc__)
