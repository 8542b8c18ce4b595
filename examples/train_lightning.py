"""Lightning: a loader is handed to `fit`, and every checkpoint resumes exactly.

usage: gdsload demo --keep digits/ && python examples/train_lightning.py digits/ runs/ [ddp]
"""

from __future__ import annotations

import sys

import pytorch_lightning as pl
import torch
from digits_model import network, parts
from torch import Tensor, nn

import gdsload


class Reader(pl.LightningModule):
    """Reads digits."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
        return nn.functional.cross_entropy(self.network(batch["image"]), batch["label"])

    def validation_step(self, batch: dict[str, Tensor], _: int) -> None:
        right = (self.network(batch["image"]).argmax(1) == batch["label"]).float().mean()
        self.log("accuracy", right, batch_size=len(batch["label"]), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main(path: str, folder: str, strategy: str = "auto") -> None:
    """A few steps, and the rest from their checkpoint."""
    train, test = parts(path)
    saver = pl.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=10, save_top_k=-1)
    devices = "auto" if strategy == "auto" else 2
    plain = {"logger": False, "enable_progress_bar": False, "devices": devices, "strategy": strategy}
    for steps, checkpoint in ((10, None), (-1, f"{folder}/step=10.ckpt")):
        training = gdsload.DataLoader(train, 64, shuffle=True)
        trainer = pl.Trainer(max_epochs=12, max_steps=steps, callbacks=[saver], **plain)
        trainer.fit(Reader(), training, gdsload.DataLoader(test, 256), ckpt_path=checkpoint)
    if trainer.is_global_zero:
        print(f"accuracy {trainer.callback_metrics['accuracy']:.3f}, {training.stats.batches} batches")


if __name__ == "__main__":
    main(*sys.argv[1:])
