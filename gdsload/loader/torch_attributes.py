"""The attributes of torch's loader that frameworks read, with values that keep them from remaking ours.

They tell a loader its epoch by ``loader.sampler.set_epoch``, look at the type of ``loader.sampler`` for whether it
shuffles, and some make a loader of torch's from `dataset`, `batch_sampler` and `collate_fn`. That one would read sample
by sample, in another order or form, or share out among ranks what is shared out already. So these attributes raise an
error, which says what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch.utils.data import Sampler, SequentialSampler

from gdsload.errors import OptionError

if TYPE_CHECKING:
    from gdsload.loader.life import Life

_SET_BY_FRAMEWORKS = "worker_init_fn"
"""Lightning sets it after `seed_everything(workers=True)`."""


class OrderView(Sampler[Any]):
    """``loader.sampler`` of a loader that has no sampler of the user's: it knows the epoch, and cannot be iterated.

    It is made of the loader's life, not of the loader itself, which holds this: it must be freed when it is dropped.
    """

    def __init__(self, life: Life, samples: int) -> None:
        self._life, self._samples = life, samples

    def set_epoch(self, epoch: int) -> None:
        """As `DataLoader.set_epoch`."""
        self._life.set_epoch(epoch)

    def __len__(self) -> int:
        """Number of samples of the dataset."""
        return self._samples

    def __iter__(self) -> Iterator[Any]:
        raise _remade_by_torch()


class SequentialView(OrderView, SequentialSampler):
    """The same of a loader that does not shuffle: frameworks look for torch's class."""


class BatchView(OrderView):
    """``loader.batch_sampler`` of a loader that has none of the user's. Frameworks set the epoch by its `sampler`."""

    def __init__(self, life: Life, sampler: OrderView, batch_size: int, drop_last: bool) -> None:
        super().__init__(life, len(sampler))
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __len__(self) -> int:
        """Return ``len(loader)``."""
        return self._life.batches()


def _refuse_to_collate(_: object) -> Any:
    raise _remade_by_torch()


def _remade_by_torch() -> OptionError:
    return OptionError(
        "a framework, or code of yours, has made a loader of torch's from a gdsload.DataLoader: it would read sample "
        "by sample, without the loader's transforms, device, ranks and state",
        remedy="Hand the gdsload loader to the training loop as it is, without what prepares or skips in torch's "
        "loaders, or use what gdsload.integrations has for the framework; docs/frameworks says how for each.",
    )


class TorchAttributes:
    """The attributes of torch's loader that ours has no use for, as torch's has them where nothing was asked for."""

    num_workers: int = 0
    pin_memory: bool = False
    pin_memory_device: str = ""
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    multiprocessing_context: Any = None
    timeout: float = 0
    in_order: bool = True
    generator: Any = None
    worker_init_fn: Callable[[int], None] | None = None
    collate_fn: Callable[[Any], Any] = staticmethod(_refuse_to_collate)

    _made = False
    _own: frozenset[str] | set[str] = frozenset()
    """The attributes that the loader has set itself."""
    _defaults: Mapping[str, object] = MappingProxyType({})
    """The defaults of the constructor's arguments, by name."""

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute; OptionError, a ValueError as in torch, for keywords, which would change nothing."""
        fixed = name in self._defaults or name in self._own or name in vars(TorchAttributes)
        if self._made and fixed and name[:1] != "_" and name != _SET_BY_FRAMEWORKS:
            new = f"Make a new one with the `{name}` that you want."
            raise OptionError(
                f"cannot be set after the {type(self).__name__} was made, and would change nothing",
                option=name,
                remedy=new if name in self._defaults else "Leave it out.",
            )
        super().__setattr__(name, value)
