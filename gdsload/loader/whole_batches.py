"""A warning where random transforms of torchvision's get whole batches, for all of whose samples they draw once."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from gdsload.loader.options import Options
from gdsload.transforms import Compose

__all__ = ["warn_of_shared_draws"]

_ALSO_RANDOM = (
    "AugMix", "AutoAugment", "ColorJitter", "ElasticTransform", "GaussianBlur", "GaussianNoise", "RandAugment",
    "ScaleJitter", "TrivialAugmentWide",
)  # fmt: skip
"""torchvision's transforms that draw, beside those called ``Random...``; its MixUp and CutMix are for batches."""


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
