"""The keywords that `gdsload.DataLoader` does not have: torch's, former ones of ours, and wrong ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import TypedDict

from gdsload.backends.choices import Auto, Bounce, Gds
from gdsload.errors import OptionError
from gdsload.system.names import check_names

__all__ = ["WARNED", "TorchKeywords", "check_torch_keywords"]

_FORMER: tuple[tuple[str, dict[str, str]], ...] = (
    ("shuffle=gdsload.BlockShuffle({})", {"block": "block=", "window": "window=", "lanes": "lanes="}),
    ("ranks=({})", {"rank": "", "world_size": ""}),
    ("ranks={}", {"mesh": ""}),
    ("ranks={}", {"process_group": ""}),
    (
        "memory=gdsload.Memory({})",
        {
            "prefetch_bytes": "prefetch=", "arena_bytes": "arena=", "register_bytes": "registered=",
            "vram_bytes": "vram=", "ram_bytes": "ram=",
        },
    ),
    (
        "backend=gdsload.{backend}({})",
        {"gds_engine": "engine=", "gds_compat": "compat=", "pinned_bytes": "pinned=", "read_threads": "threads="},
    ),
    (
        "sample_transform=gdsload.PerSample(transform, {})",
        {"sample_workers": "workers=", "sample_processes": "processes="},
    ),
    ("ragged=gdsload.Padded({})", {"padding_value": ""}),
)  # fmt: skip
"""Former keywords: the values that replace them, and their places in these."""
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


def check_torch_keywords(given: Mapping[str, object], known: Iterable[str], backend: object) -> None:
    """Answer the keywords that the loader does not have: with a warning, once, for those that it does not need.

    Args:
        given: the keywords.
        known: those that the loader has.
        backend: the loader's.

    Raises:
        OptionError: if one is a former one, or unknown.
    """
    _refuse_former(given, backend)
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


def _refuse_former(given: Mapping[str, object], backend: object) -> None:
    """Refuse keywords that are values of other options, with the text that says the same."""
    kind = Gds if "gds_compat" in given else {"bounce": Bounce, "gds": Gds}.get(str(backend), Auto)
    has = {f"{field.name}=" for field in fields(kind)}
    said: list[str] = []
    names: list[str] = []
    for text, places in _FORMER:
        found = {name: place for name, place in places.items() if name in given}
        names += found
        if given.get("sample_workers") == 0 and found.pop("sample_workers", ""):
            said.append("ahead=False")
        if "{backend}" in text:
            found = {name: place for name, place in found.items() if place in has}
        if found:
            values = ", ".join(f"{place}{_shown(name, given[name])}" for name, place in found.items())
            said.append(text.format(values, backend=kind.__name__))
    if names:
        raise OptionError(f"DataLoader has no option {', '.join(names)}", remedy=f"Pass `{'`, `'.join(said)}`.")


def _shown(name: str, value: object) -> str:
    """A value as it is written, or the name of one that cannot be."""
    return repr(value) if value is None or isinstance(value, bool | int | float | str | dict) else name
