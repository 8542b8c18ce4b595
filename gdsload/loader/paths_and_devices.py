"""The path of a dataset, and the device that its samples go to, as users give them."""

from __future__ import annotations

import os
from typing import cast

import torch

from gdsload.errors import OptionError

SEVERAL = (
    "Several datasets are read as torch.utils.data.ConcatDataset([gdsload.ShardDataset(path) for path in paths]), or "
    "made one by gdsload.merge(paths, out)."
)
"""The remedy for paths of several datasets."""


def dataset_path(path: object) -> str:
    """The path of a dataset; OptionError if it is no path, or several."""
    if isinstance(path, str | os.PathLike):
        return os.fspath(path)
    raise OptionError(f"a dataset's path is a text or an os.PathLike, not {path!r:.200}", remedy=SEVERAL)


def resolve_device(device: str | torch.device | int | None) -> torch.device:
    """The device that batches go to: as given, OptionError if it is not there, else the accelerator, else the CPU."""
    if device is None:
        if not torch.accelerator.is_available():
            return torch.device("cpu")
        kind = cast("torch.device", torch.accelerator.current_accelerator())
        return torch.device(kind.type, _current_index())
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
        if found.type == "meta":
            raise TypeError("it has no memory")
        if found.type == "cuda" and found.index is None:
            found = torch.device("cuda", torch.cuda.current_device())
    except (RuntimeError, AssertionError, TypeError) as error:
        raise OptionError(
            f"{device!r} cannot be used here: {(str(error).splitlines() or [type(error).__name__])[0]}",
            option="device",
            remedy='Pass `device="cpu"`, or leave `device` out for the accelerator if there is one.',
        ) from None
    return found


def _current_index() -> int:
    """The current accelerator; or LOCAL_RANK, if a launcher has set it and no device was chosen since."""
    index, rank = torch.accelerator.current_device_index(), os.environ.get("LOCAL_RANK", "")
    if index == 0 and rank.isdecimal() and int(rank) < torch.accelerator.device_count():
        return int(rank)
    return index
