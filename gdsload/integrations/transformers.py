"""Loaders for the Trainer of transformers, resumed in the middle of an epoch as its own are."""

from __future__ import annotations

import copy
from typing import Any

from transformers import Trainer

from gdsload.integrations.accelerate import PreparedLoader, prepare
from gdsload.loader.loader import DataLoader


class LoaderTrainer(Trainer):  # type: ignore[misc]  # transformers is not there where types are checked
    """A Trainer that takes its batches from gdsload loaders.

        trainer = LoaderTrainer(model, arguments, train_loader=loader, eval_loader=other)
        trainer.train(resume_from_checkpoint=True)

    The loaders decide batch sizes, order and shuffling, and the arguments for these have no effect. The model gets
    batches as the loader makes them, by the names of their fields. After a checkpoint in the middle of an epoch, the
    batches before it are left out, at no cost; with a sampler of yours they are loaded and dropped.

    Args:
        train_loader: batches to train with; None as for `train_dataset`.
        eval_loader: batches to evaluate with; ``tail="pad"`` where there are several processes.
    """

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        *others: Any,
        train_loader: DataLoader | None = None,
        eval_loader: DataLoader | None = None,
        **named: Any,
    ) -> None:
        self._train_loader, self._eval_loader = train_loader, eval_loader
        args = copy.copy(args)
        for kind, loader in (("train", train_loader), ("eval", eval_loader)):
            if loader is not None:
                named.setdefault(f"{kind}_dataset", loader.dataset)
                if args is not None and loader.batch_size is not None:  # it weights losses by it
                    setattr(args, f"per_device_{kind}_batch_size", loader.batch_size)
        super().__init__(model, args, *others, **named)

    def get_train_dataloader(self) -> Any:
        """The loader to train with, prepared."""
        return super().get_train_dataloader() if self._train_loader is None else self._prepared(self._train_loader)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """The loader to evaluate with, prepared; one of torch's if another dataset is given."""
        if self._eval_loader is None or eval_dataset not in (None, self._eval_loader.dataset):
            return super().get_eval_dataloader(eval_dataset)
        return self._prepared(self._eval_loader)

    def _prepared(self, loader: DataLoader) -> PreparedLoader:
        return prepare(self.accelerator, loader)
