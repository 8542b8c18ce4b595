"""The Trainer of transformers, resumed in the middle of an epoch.

usage: gdsload demo --keep digits/ && python examples/train_transformers.py digits/ runs/
"""

from __future__ import annotations

import sys

from digits_model import network, parts
from torch import Tensor, nn
from transformers import TrainingArguments

import gdsload
from gdsload.integrations.transformers import LoaderTrainer


class Reader(nn.Module):
    """Reads digits: its parameters are the fields of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, image: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.network(image)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def renamed(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The Trainer looks for ``labels``."""
    return {"image": batch["image"], "labels": batch["label"]}


def right(found: object) -> dict[str, float]:
    """Share of digits that were read right."""
    return {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())}


def main(path: str, folder: str) -> None:
    """A few steps, and the rest from their checkpoint."""
    train, test = parts(path)
    plain = {"learning_rate": 3e-3, "report_to": [], "disable_tqdm": True, "save_steps": 10}
    for steps, resumed in ((10, None), (-1, True)):
        arguments = TrainingArguments(folder, num_train_epochs=12, max_steps=steps, **plain)
        loader = gdsload.DataLoader(train, 64, shuffle=True, transform=renamed)
        held_out = gdsload.DataLoader(test, 256, transform=renamed)
        trainer = LoaderTrainer(Reader(), arguments, train_loader=loader, eval_loader=held_out, compute_metrics=right)
        trainer.train(resume_from_checkpoint=resumed)
    print(f"accuracy {trainer.evaluate()['eval_accuracy']:.3f}, {loader.stats.batches} batches")


if __name__ == "__main__":
    main(*sys.argv[1:])
