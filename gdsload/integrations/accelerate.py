"""Loaders for Accelerate, which must know where an epoch ends, and makes torch's loaders again to skip batches.

A prepared loader is one of torch's, by its class: its batch sampler gives the numbers of steps, and its dataset the
batches at these. So a loader made of its parts, as by `accelerate.skip_first_batches`, gives the loader's own batches.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch.utils.data import Dataset, Sampler

from gdsload.engine.batch_source import identity
from gdsload.errors import OptionError
from gdsload.loader.loader import DataLoader


def prepare(accelerator: Accelerator, loader: DataLoader) -> PreparedLoader:
    """Prepare a loader as `accelerator.prepare` does those of torch.

    With what is returned `accumulate`, `gather_for_metrics`, `skip_first_batches`, `save_state` and `load_state` work
    as with torch's loaders. The loader itself shares out the samples among the processes, and makes the batches on
    its device.

    Args:
        accelerator: made before the first batch.
        loader: the loader; ``tail="pad"`` where ranks gather what they make of its last batch.

    Raises:
        OptionError: if the accelerator is to dispatch batches from one process, or to split them; or if it does not
            know of the processes that torch.distributed has.
    """
    _check_processes(accelerator)
    if accelerator.dispatch_batches or accelerator.split_batches:
        name = "dispatch_batches" if accelerator.dispatch_batches else "split_batches"
        raise OptionError(
            "of the accelerator is True, but the `batch_size` of a gdsload.DataLoader is that of each process, which "
            "reads its own share",
            option=name,
            remedy=f"Leave `{name}` out, and divide `batch_size` by the number of processes.",
        )
    prepared = PreparedLoader(accelerator, loader)
    accelerator.prepare_data_loader(prepared)  # it notes the loader, for `save_state`
    return prepared


def _check_processes(accelerator: Accelerator) -> None:
    """Refuse an accelerator that was made in several processes on CPUs without knowing of them.

    Without ``cpu=True`` it initialises torch.distributed there, but keeps no backend, so that models are not wrapped.
    """
    distributed = torch.distributed
    processes = distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
    if processes > accelerator.num_processes:
        raise OptionError(
            f"torch.distributed has {processes} processes, but the accelerator knows of {accelerator.num_processes}: "
            "each would train another model on its share of the samples",
            remedy="On CPUs, make it with `Accelerator(cpu=True)`, a Trainer with `TrainingArguments(use_cpu=True)`.",
        )


class _Run:
    """An epoch that is being run, as Accelerate's `GradientState` knows loaders."""

    def __init__(self, accelerator: Accelerator, loader: DataLoader) -> None:
        self._accelerator, self._loader = accelerator, loader
        self._sampled = loader.order_options.shuffle == "sampler"
        self._first, self._steps = loader.step, len(loader)
        self._next = self._first
        self._batches: Iterator[Any] | None = None
        self.end_of_dataloader = False

    @property
    def remainder(self) -> int:
        """Samples of the last global batch, which come first in what ranks gather of it; 0 if it is a full one.

        It is 0, too, where some come twice and not at the end, and -1 if it is not known, as with samplers.
        """
        if self._sampled:
            return -1
        rest, processes = self._loader.remainder, self._accelerator.num_processes
        if rest % processes and self._loader.tail != "pad":
            warnings.warn(
                f"{processes} processes cannot share out the {rest} samples of the last batch evenly, so gathered "
                'results have some twice: with `tail="pad"` those come last, and are left out',
                stacklevel=2,
            )
            return 0
        return rest

    def tickets(self) -> Iterator[list[tuple[_Run, int]]]:
        """Yield a list of one ticket, the run and the step, for each step of the epoch."""
        gradients = self._accelerator.gradient_state
        gradients._add_dataloader(self)  # noqa: SLF001 (there is no other way in)
        try:
            for step in range(self._first, self._steps):
                yield [(self, step)]
            if self._batches is not None:
                next(self._batches, None)  # the end, at which the epoch is finished and its files are looked at
        finally:
            gradients._remove_dataloader(self)  # noqa: SLF001

    def batch(self, step: int) -> Any:
        """The batch at a step; those from the one handed out last to this one are left out."""
        if self._batches is None:
            if step > self._first and not self._sampled:
                self._loader.set_epoch(self._loader.epoch, step)
                self._next = step
            self._batches = iter(self._loader)
        while True:
            batch = next(self._batches)
            self._next += 1
            if self._next > step:
                break
        self.end_of_dataloader = self._next == self._steps
        placed = self._accelerator.device_placement
        return send_to_device(batch, self._accelerator.device) if placed else batch


class _Steps(Sampler[list[tuple[_Run, int]]]):
    """The steps of an epoch, each by itself, in place of the indices of a batch."""

    even_batches = True
    """As in Accelerate's sampler, whose `join_uneven_inputs` sets it: ranks always have equally many batches here."""

    def __init__(self, accelerator: Accelerator, loader: DataLoader) -> None:
        self._accelerator, self._loader = accelerator, loader
        self.batch_size, self.drop_last = loader.batch_size, loader.drop_last

    def __iter__(self) -> Iterator[list[tuple[_Run, int]]]:
        return _Run(self._accelerator, self._loader).tickets()

    def __len__(self) -> int:
        return len(self._loader)

    def set_epoch(self, epoch: int) -> None:
        """As `DataLoader.set_epoch`."""
        self._loader.set_epoch(epoch)


class _Batches(Dataset[Any]):
    """A dataset of as many samples as the loader's, and of the batches at its steps."""

    def __init__(self, samples: Any) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitems__(self, steps: list[tuple[_Run, int]]) -> Any:
        """The batch at a step."""
        ((run, step),) = steps
        return run.batch(step)

    def __getitem__(self, index: int) -> Any:
        """A sample of the loader's dataset."""
        return self._samples[index]


class PreparedLoader(torch.utils.data.DataLoader[Any]):
    """A loader as Accelerate wants it; `prepare` makes it.

    Attributes:
        loader: the `gdsload.DataLoader` that makes the batches.
    """

    use_stateful_dataloader = True
    """Accelerate's word for a loader that has its state saved."""
    _is_accelerate_prepared = True

    def __init__(self, accelerator: Accelerator, loader: DataLoader) -> None:
        # Another generator: torch's loader draws a number at each epoch, for workers, which do not exist here.
        steps, generator = _Steps(accelerator, loader), torch.Generator()
        super().__init__(_Batches(loader.dataset), batch_sampler=steps, collate_fn=identity, generator=generator)
        self.loader = loader

    def set_epoch(self, epoch: int) -> None:
        """As `DataLoader.set_epoch`."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """As `DataLoader.state_dict`."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As `DataLoader.load_state_dict`."""
        self.loader.load_state_dict(state)
