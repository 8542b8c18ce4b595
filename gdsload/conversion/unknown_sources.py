"""Error texts for a source that no kind reads: the files that are there, and the ways out."""

from __future__ import annotations

import os
from collections import Counter
from itertools import islice

from gdsload.conversion.folders import entries_in, names_below

__all__ = ["WAYS_OUT", "unknown"]

WAYS_OUT = (
    "Anything else is converted as a torch dataset, named as 'package.module:name' (in Python also as an object), or "
    "as a Source of your own: see gdsload.conversion.source."
)
_LOOKED_AT = 10_000
_SHOWN = 8
_HINTS = {
    "video is not decoded: a torch dataset that returns frames can be converted":
        (".mp4", ".mkv", ".avi", ".mov", ".webm", ".m4v"),
    "audio of this form is not decoded: a torch dataset that returns samples can be converted":
        (".m4a", ".aac", ".wma"),
    "GIF images are not decoded: save them as PNG": (".gif",),
    "archives other than tar are not read: unpack them first":
        (".zip", ".rar", ".7z", ".tar.bz2", ".tar.xz", ".tar.zst"),
    "unpack it first (gunzip)": (".json.gz", ".txt.gz", ".npy.gz"),
    "unpack it first (zstd -d)": (".jsonl.zst", ".json.zst", ".csv.zst", ".tsv.zst", ".txt.zst", ".npy.zst"),
    "an array of JSON is read as a line for each sample: write it so (jq -c '.[]' a.json > a.jsonl)": (".json",),
}  # fmt: skip


def unknown(path: str) -> str:
    """An error text for a path with no known file: the endings of names there, and advice about some."""
    is_folder = os.path.isdir(path)
    names = [name for _, name in islice(names_below(path), _LOOKED_AT)] if is_folder else [os.path.basename(path)]
    endings = Counter(_ending(name) for name in names)
    if not names:
        return "all its files are hidden, or kept by other programs beside data" if entries_in(path) else "it is empty"
    common = ", ".join(f"{ending} ({count})" for ending, count in endings.most_common(_SHOWN))
    more = ", …" if len(endings) > _SHOWN else ""
    hints = [hint for hint, suffixes in _HINTS.items() if any(name.lower().endswith(suffixes) for name in names)]
    return "; ".join([f"none of its files is known; it has {common}{more}", *hints])


def _ending(name: str) -> str:
    stem, ending = os.path.splitext(name.lower())
    inner = os.path.splitext(stem)[1] if ending in (".gz", ".bz2", ".xz", ".zst", ".zip") else ""
    return (inner + ending)[:40] if ending else "names without an ending"
