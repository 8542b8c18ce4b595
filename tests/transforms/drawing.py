"""Random numbers for tests of transforms."""

import torch


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def images(*shape, dtype=torch.uint8, seed=0):
    return torch.randint(0, 256, shape, generator=seeded(seed)).to(dtype)
