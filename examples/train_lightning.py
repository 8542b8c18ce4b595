"""Lightning: `fit` takes the loader, and every checkpoint resumes exactly.

usage: gdsload demo --keep digits/ && python examples/train_lightning.py digits/ runs/
"""

import sys

import pytorch_lightning as pl
from digits_model import adam, loss_of, network, parts, right
from torch import Tensor

import gdsload


class Reader(pl.LightningModule):
    """Classifies digits with its ``network``."""

    configure_optimizers = adam

    def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
        return loss_of(self.network, batch)

    def validation_step(self, batch: dict[str, Tensor], _: int) -> None:
        self.log("accuracy", right(self.network, batch).float().mean(), batch_size=len(batch["label"]), sync_dist=True)


def main(path: str, folder: str) -> None:
    """Train ten steps, then the rest from their checkpoint."""
    saver = pl.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=10, save_top_k=-1)
    plain = {"max_epochs": 12, "callbacks": [saver], "logger": False, "enable_progress_bar": False}
    for steps, checkpoint in ((10, None), (-1, f"{folder}/step=10.ckpt")):
        model, trainer, (train, test) = Reader(), pl.Trainer(max_steps=steps, **plain), parts(path)
        model.network = network()
        train, test = gdsload.DataLoader(train, 64, shuffle=True), gdsload.DataLoader(test, 256)
        trainer.fit(model, train, test, ckpt_path=checkpoint)
    model.print(f"accuracy {trainer.callback_metrics['accuracy']:.3f}, {train.stats.batches} batches")


if __name__ == "__main__":
    main(*sys.argv[1:]) if sys.argv[1:] else sys.exit(__doc__)
