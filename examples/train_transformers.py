"""The Trainer of transformers, resumed in the middle of an epoch.

usage: gdsload demo --keep digits/ && python examples/train_transformers.py digits/ runs/
"""

import sys

from digits_model import network, parts
from torch import Tensor, nn
from transformers import TrainingArguments

import gdsload
from gdsload.integrations.transformers import LoaderTrainer


class Reader(nn.Sequential):
    """Classifies digits. The parameters of `forward` are the fields of a batch, with the labels as ``labels``."""

    def forward(self, image: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = super().forward(image)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main(path: str, folder: str) -> None:
    """Train ten steps, then the rest from their checkpoint."""
    plain = {"learning_rate": 3e-3, "report_to": [], "disable_tqdm": True, "save_steps": 10}
    renamed = {"transform": lambda batch: {"image": batch["image"], "labels": batch["label"]}}
    scores = {"compute_metrics": lambda it: {"right": float((it.predictions.argmax(1) == it.label_ids).mean())}}
    for steps, resumed in ((10, None), (-1, True)):
        train, test = parts(path)
        train, test = gdsload.DataLoader(train, 64, shuffle=True, **renamed), gdsload.DataLoader(test, 256, **renamed)
        arguments = TrainingArguments(folder, num_train_epochs=12, max_steps=steps, **plain)
        trainer = LoaderTrainer(Reader(*network()), arguments, train_loader=train, eval_loader=test, **scores)
        trainer.train(resume_from_checkpoint=resumed)
    print(f"accuracy {trainer.evaluate()['eval_right']:.3f}, {train.stats.batches} batches")


if __name__ == "__main__":
    main(*sys.argv[1:]) if sys.argv[1:] else sys.exit(__doc__)
