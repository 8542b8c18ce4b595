"""The demo: scikit-learn's handwritten digits become shards, and a small network learns to read them.

The data are the 1 797 images of 8 by 8 pixels of the UCI "Optical Recognition of Handwritten Digits" test set
(https://doi.org/10.24432/C50P49), which scikit-learn ships.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import random_split

from gdsload.backends.base import BackendStatus
from gdsload.errors import DatasetExistsError, OptionError
from gdsload.loader.dataset import ShardDataset
from gdsload.loader.loader import DataLoader
from gdsload.shards.writer import ShardWriter

_HELD_OUT = 0.2
_BATCH = 64


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The result of the demo. `wait_share` is the share of the training time for which the device waited for data."""

    accuracy: float
    held_out: int
    samples_per_s: float
    wait_share: float
    device: str
    backend: BackendStatus

    def __str__(self) -> str:
        backend = "; ".join(line.strip() for line in str(self.backend).splitlines())
        return (
            f"accuracy     {self.accuracy:.2%} of {self.held_out} held-out digits\n"
            f"speed        {self.samples_per_s:,.0f} samples/s on {self.device}\n"
            f"waiting      {self.wait_share:.1%} of the training time was spent waiting for data\n"
            f"backend      {backend}"
        )


def run_demo(
    *,
    epochs: int = 30,
    seed: int = 0,
    device: str | None = None,
    keep: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> DemoResult:
    """Convert, train, test.

    The shards stay in the folder `keep`, if it is given. `progress` is called with the epochs that are through, and
    how many there are.

    Raises:
        OptionError: if scikit-learn is not installed.
        DatasetExistsError: if there is something at `keep`.
    """
    with tempfile.TemporaryDirectory(prefix="gdsload-demo-") as folder:
        path = os.path.join(folder, "digits") if keep is None else keep
        _write_digits(path)
        split = random_split(ShardDataset(path), [1 - _HELD_OUT, _HELD_OUT], torch.Generator().manual_seed(seed))
        torch.manual_seed(seed)
        with (
            DataLoader(split[0], _BATCH, shuffle=True, seed=seed, drop_last=True, device=device) as training,
            DataLoader(split[1], 256, device=device) as testing,
        ):
            model = _network().to(training.device)
            started = time.perf_counter()
            _train(model, training, epochs, progress)
            elapsed = time.perf_counter() - started
            starved, waited = training.stats.starved_share, training.stats.host_wait_s / elapsed
            return DemoResult(
                _accuracy(model, testing),
                len(split[1]),
                training.stats.samples / elapsed,
                waited if starved is None else starved,
                str(training.device),
                training.backend,
            )


def _write_digits(path: str) -> None:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise OptionError(
            "the demo's data come with scikit-learn, which is not installed", remedy="pip install 'gdsload[demo]'"
        ) from None
    digits = load_digits()
    try:
        made = ShardWriter(path, shard_bytes="64KiB")
    except DatasetExistsError as error:
        error.remedy = "Name another folder, or remove this one first."  # the demo replaces nothing
        raise
    with made as writer:
        writer.write_batch({"image": digits.images.astype("float32")[:, None] / 16, "label": digits.target})


def _train(model: nn.Module, batches: DataLoader, epochs: int, progress: Callable[[int, int], None] | None) -> None:
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(epochs):
        if progress is not None:
            progress(epoch, epochs)
        for batch in batches:
            optimiser.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            loss.backward()
            optimiser.step()


def _network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def _accuracy(model: nn.Module, batches: DataLoader) -> float:
    model.eval()
    with torch.inference_mode():
        right = [model(batch["image"]).argmax(1) == batch["label"] for batch in batches]
    return float(torch.cat(right).double().mean())
