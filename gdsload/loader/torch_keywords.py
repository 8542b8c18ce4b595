"""The keywords that `gdsload.DataLoader` does not have: torch's, and wrong ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TypedDict

from gdsload.system.names import check_names

__all__ = ["WARNED", "TorchKeywords", "check_torch_keywords"]

_TORCHS: dict[str, object] = {
    "num_workers": 0, "pin_memory": False, "pin_memory_device": "", "prefetch_factor": None, "timeout": 0,
    "persistent_workers": False, "worker_init_fn": None, "multiprocessing_context": None, "in_order": True,
}  # fmt: skip
"""torch's defaults: if they are written out, they ask for nothing."""
WARNED: set[str] = set()
"""The keywords that a warning has named in this process."""


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
    """Answer the keywords that the loader does not have: with a warning, once, for those that it does not need.

    Args:
        given: the keywords.
        known: those that the loader has.

    Raises:
        OptionError: if one is unknown.
    """
    unneeded = TorchKeywords.__annotations__.keys()
    check_names("DataLoader", sorted(given.keys() - unneeded), known)
    found = sorted(name for name in given.keys() & unneeded if given[name] != _TORCHS[name])
    if not WARNED.issuperset(found):
        WARNED.update(found)
        warnings.warn(
            f"gdsload.DataLoader does not need {', '.join(found)}: it reads ahead in its own threads",
            UserWarning,
            stacklevel=3,
        )
