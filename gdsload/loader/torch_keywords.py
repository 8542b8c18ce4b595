"""Arguments that users of torch and torchvision are used to: keywords without a meaning here, and random transforms."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypedDict

import torch

from gdsload.loader.options import Options
from gdsload.loader.torch_attributes import TorchAttributes
from gdsload.system.names import check_names
from gdsload.transforms import Compose

WARNED: set[str] = set()
"""The keywords that a warning has named in this process."""

_ALSO_RANDOM = (
    "AugMix", "AutoAugment", "ColorJitter", "ElasticTransform", "GaussianBlur", "GaussianNoise", "RandAugment",
    "ScaleJitter", "TrivialAugmentWide",
)  # fmt: skip
"""torchvision's transforms that draw, beside those called ``Random...``; its MixUp and CutMix are for batches."""


class TorchKeywords(TypedDict, total=False):
    """Keywords of torch's loader that have no meaning here."""

    num_workers: int
    pin_memory: bool
    pin_memory_device: str
    prefetch_factor: int | None
    persistent_workers: bool
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: object
    timeout: float
    in_order: bool


def check_torch_keywords(given: Mapping[str, object], known: Iterable[str]) -> None:
    """Warn, once, of keywords that the loader does not need; OptionError if one is unknown."""
    unneeded = TorchKeywords.__annotations__.keys()
    check_names("DataLoader", sorted(given.keys() - unneeded), known)
    # torch's defaults, if they are written out, ask for nothing.
    found = sorted(name for name in given.keys() & unneeded if given[name] != getattr(TorchAttributes, name))
    if not WARNED.issuperset(found):
        WARNED.update(found)
        warnings.warn(
            f"gdsload.DataLoader does not need {', '.join(found)}: it reads ahead in its own threads",
            UserWarning,
            stacklevel=3,
        )


def warn_of_shared_draws(options: Options) -> None:
    """Warn if `transform` or `device_transform` is or contains such a transform. Code of functions is not looked at."""
    if "torchvision" not in sys.modules:
        return
    for name, value in (("transform", options.transform), ("device_transform", options.device_transform)):
        found = next(_drawing(value), None)
        if found is not None:
            warnings.warn(
                f"`{name}` gets whole batches, and torchvision's {found} draws once for all samples of one: pass it as "
                "`sample_transform`, which gets them one by one, or take one of gdsload.transforms",
                UserWarning,
                stacklevel=3,
            )


def _drawing(value: Any) -> Iterator[str]:
    """Names of torchvision's random transforms in what a loader is given."""
    kind = type(value)
    inside: list[Any] = []
    if kind.__module__.startswith("torchvision.transforms"):
        if kind.__name__.startswith("Random") or kind.__name__ in _ALSO_RANDOM:
            yield kind.__name__
        nested = getattr(value, "transforms", ())
        inside += nested if isinstance(nested, list | tuple) else []
    elif isinstance(value, list | tuple):
        inside += value
    elif isinstance(value, Compose):
        inside += value.transforms
    elif isinstance(value, functools.partial):
        inside += [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, torch.nn.Module):
        inside += value.children()
    for one in inside:
        yield from _drawing(one)
