"""The contenders, one file for each library, all behind `benchmarks.contenders.base.Contender`."""

from __future__ import annotations

import importlib
from typing import Any

from benchmarks.contenders.base import Contender

__all__ = ["BASIC", "NAMES", "find", "load"]

NAMES = {
    "copy": "references:ContiguousCopy",
    "numpy": "references:FancyIndexing",
    "gdsload": "gdsload_loader:Gdsload",
    "gdsload-block": "gdsload_loader:GdsloadBlock",
    "torch-w0": "torch_loader:TorchItems0",
    "torch-w2": "torch_loader:TorchItems2",
    "torch-batched-w0": "torch_loader:TorchBatches0",
    "torch-batched-w2": "torch_loader:TorchBatches2",
    "datasets": "huggingface:HuggingFace",
    "webdataset": "tar_files:WebDatasetTar",
    "mosaicml": "mosaicml:MosaicML",
    "litdata": "lightning:LitData",
    "grain": "grain_loader:Grain",
    "grain-processes": "grain_loader:GrainProcesses",
    "spdl": "spdl_loader:Spdl",
}
"""Where each one is, in the order of the table. Imported only in its own process: a peer may be absent."""

BASIC = tuple(name for name in NAMES if name in {"copy", "numpy"} or name.startswith(("gdsload", "torch")))
"""Those that need nothing besides gdsload's own dependencies."""


def load(name: str) -> type[Contender]:
    """The class of a contender.

    Raises:
        ImportError: if its library is not installed.
    """
    kind: type[Contender] = find(f"benchmarks.contenders.{NAMES[name]}")
    return kind


def find(where: str) -> Any:
    """The class at ``package.module:name``, which says what library it needs: that is imported, too.

    Raises:
        ImportError: if the library is not installed.
    """
    module, name = where.split(":")
    kind = getattr(importlib.import_module(module), name)
    if kind.package:
        importlib.import_module(kind.module or kind.package)
    return kind
