"""gdsload: batches of tensors from NVMe, by the shortest path the machine has.

Public names are imported when they are first used: torch alone takes more than a second, and `gdsload --help` and
completion in a shell need none of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gdsload.system.version import __version__

if TYPE_CHECKING:
    from gdsload.backends.base import BackendStatus, CacheStatus
    from gdsload.backends.choices import Auto, Bounce, Gds
    from gdsload.conversion.rearrange import merge, reshard, split
    from gdsload.conversion.runner import ConvertReport, convert
    from gdsload.engine.codecs import Varlen
    from gdsload.engine.sample_transform import PerSample
    from gdsload.engine.stats import LoaderStats, Observer
    from gdsload.errors import (
        BackendUnavailableError,
        BudgetError,
        ChecksumError,
        ConversionError,
        DatasetExistsError,
        DatasetNotFoundError,
        DiskFullError,
        FileChangedError,
        FormatError,
        GdsloadError,
        LoaderClosedError,
        OptionError,
        Problem,
        ReadError,
        SampleIndexError,
        SchemaError,
        ShortReadError,
        Skipped,
        StateError,
        UnfinishedDatasetError,
        WriteError,
    )
    from gdsload.loader.batch_fields import Padded
    from gdsload.loader.cached import cached
    from gdsload.loader.dataset import ShardDataset, ShardInfo
    from gdsload.loader.diagnosis import Diagnosis
    from gdsload.loader.length_batches import LengthBuckets, TokenBudget
    from gdsload.loader.loader import DataLoader
    from gdsload.loader.mix import Mix
    from gdsload.loader.options import Memory, Verify
    from gdsload.loader.windows import Windows
    from gdsload.order import BlockShuffle, OrderOptions
    from gdsload.shards.format.schema import Field, Schema
    from gdsload.shards.verify import VerifyReport
    from gdsload.shards.writer import ShardWriter

__all__ = [
    "Auto",
    "BackendStatus",
    "BackendUnavailableError",
    "BlockShuffle",
    "Bounce",
    "BudgetError",
    "CacheStatus",
    "ChecksumError",
    "ConversionError",
    "ConvertReport",
    "DataLoader",
    "DatasetExistsError",
    "DatasetNotFoundError",
    "Diagnosis",
    "DiskFullError",
    "Field",
    "FileChangedError",
    "FormatError",
    "Gds",
    "GdsloadError",
    "LengthBuckets",
    "LoaderClosedError",
    "LoaderStats",
    "Memory",
    "Mix",
    "Observer",
    "OptionError",
    "OrderOptions",
    "Padded",
    "PerSample",
    "Problem",
    "ReadError",
    "SampleIndexError",
    "Schema",
    "SchemaError",
    "ShardDataset",
    "ShardInfo",
    "ShardWriter",
    "ShortReadError",
    "Skipped",
    "StateError",
    "TokenBudget",
    "UnfinishedDatasetError",
    "Varlen",
    "Verify",
    "VerifyReport",
    "Windows",
    "WriteError",
    "__version__",
    "cached",
    "convert",
    "merge",
    "reshard",
    "split",
]

_HOMES = {
    "backends.base": "BackendStatus CacheStatus",
    "backends.choices": "Auto Bounce Gds",
    "conversion.rearrange": "merge reshard split",
    "conversion.runner": "ConvertReport convert",
    "engine.codecs": "Varlen",
    "engine.sample_transform": "PerSample",
    "engine.stats": "LoaderStats Observer",
    "errors": (
        "BackendUnavailableError BudgetError ChecksumError ConversionError DatasetExistsError DatasetNotFoundError "
        "DiskFullError FileChangedError FormatError GdsloadError LoaderClosedError OptionError Problem ReadError "
        "SampleIndexError SchemaError ShortReadError Skipped StateError UnfinishedDatasetError WriteError"
    ),
    "loader.batch_fields": "Padded",
    "loader.cached": "cached",
    "loader.dataset": "ShardDataset ShardInfo",
    "loader.diagnosis": "Diagnosis",
    "loader.length_batches": "LengthBuckets TokenBudget",
    "loader.loader": "DataLoader",
    "loader.mix": "Mix",
    "loader.options": "Memory Verify",
    "loader.windows": "Windows",
    "order": "BlockShuffle OrderOptions",
    "shards.format.schema": "Field Schema",
    "shards.verify": "VerifyReport",
    "shards.writer": "ShardWriter",
}
"""The module of each name, as type checkers see it above."""
_MODULE_OF = {name: f"gdsload.{module}" for module, names in _HOMES.items() for name in names.split()}
_ROOMS = ("backends", "conversion", "engine", "errors", "loader", "order", "shards", "system", "transforms")

if not TYPE_CHECKING:  # to a type checker it would say that every name is there

    def __getattr__(name: str) -> Any:
        if name in _MODULE_OF:
            value = getattr(importlib.import_module(_MODULE_OF[name]), name)
        elif name in _ROOMS:  # with all that is in it, as after an import of everything
            for module in dict.fromkeys(_MODULE_OF.values()):
                importlib.import_module(module)
            value = importlib.import_module(f"gdsload.{name}")
        else:
            raise AttributeError(f"module 'gdsload' has no attribute {name!r}")
        globals()[name] = value  # the next time it is found without this function
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
