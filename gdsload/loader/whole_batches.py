"""A warning where random transforms of torchvision's get whole batches, for all of whose samples they draw once."""

from __future__ import annotations

import dis
import functools
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import FunctionType
from typing import Any

import torch

from gdsload.transforms import Compose

__all__ = ["warn_of_shared_draws"]

_ALSO_RANDOM = (
    "AugMix", "AutoAugment", "ColorJitter", "ElasticTransform", "GaussianBlur", "GaussianNoise", "RandAugment",
    "ScaleJitter", "TrivialAugmentWide",
)  # fmt: skip
"""torchvision's transforms that draw, beside those called ``Random...``; its MixUp and CutMix are for batches."""
_DEEPEST = 8


def warn_of_shared_draws(given: Mapping[str, Any]) -> None:
    """Warn if `transform` or `device_transform` is, contains, or is a function that calls such a transform.

    A function with a loop, or `map`, is taken to go through the samples.

    Args:
        given: the loader's keywords.
    """
    if "torchvision" not in sys.modules:
        return
    for name in ("transform", "device_transform"):
        found = next(_drawing(given[name], 0), None)
        if found is not None:
            warnings.warn(
                f"{name} gets whole batches, and torchvision's {found} draws once for all samples of one: pass it as "
                "sample_transform=, which gets them one by one, or take one of gdsload.transforms",
                UserWarning,
                stacklevel=3,
            )


def _drawing(value: Any, depth: int) -> Iterator[str]:
    """Names of torchvision's random transforms in what a loader is given."""
    if depth > _DEEPEST:
        return
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
    elif isinstance(value, FunctionType):
        inside += _called(value)
    for one in inside:
        yield from _drawing(one, depth + 1)


def _called(function: FunctionType) -> list[Any]:
    """What a function without a loop refers to, in its module and around it."""
    code = function.__code__
    loops = any(one.opname == "FOR_ITER" for one in dis.get_instructions(code))
    if loops or {"map", "vmap"} & {*code.co_names}:
        return []
    found = [function.__globals__[name] for name in code.co_names if name in function.__globals__]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not bound yet
            found.append(cell.cell_contents)
    return found
