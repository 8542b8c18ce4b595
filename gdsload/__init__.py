"""gdsload: batches of tensors from NVMe, by the shortest path the machine has."""

from __future__ import annotations

from gdsload.backends.base import BackendStatus, CacheStatus
from gdsload.conversion.rearrange import merge, reshard, split
from gdsload.conversion.runner import ConvertReport, convert
from gdsload.engine.codecs import Varlen
from gdsload.engine.stats import LoaderStats
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
from gdsload.loader.classes import class_balanced, stratified_split
from gdsload.loader.dataset import ShardDataset, ShardInfo
from gdsload.loader.length_batches import LengthBuckets, TokenBudget
from gdsload.loader.loader import DataLoader
from gdsload.loader.mix import Mix
from gdsload.loader.weights import load_file, safe_open
from gdsload.loader.windows import Windows
from gdsload.order import OrderOptions
from gdsload.shards.format.schema import Field, Schema
from gdsload.shards.verify import VerifyReport
from gdsload.shards.writer import ShardWriter
from gdsload.system.version import __version__

__all__ = [
    "BackendStatus",
    "BackendUnavailableError",
    "BudgetError",
    "CacheStatus",
    "ChecksumError",
    "ConversionError",
    "ConvertReport",
    "DataLoader",
    "DatasetExistsError",
    "DatasetNotFoundError",
    "DiskFullError",
    "Field",
    "FileChangedError",
    "FormatError",
    "GdsloadError",
    "LengthBuckets",
    "LoaderClosedError",
    "LoaderStats",
    "Mix",
    "OptionError",
    "OrderOptions",
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
    "VerifyReport",
    "Windows",
    "WriteError",
    "__version__",
    "class_balanced",
    "convert",
    "load_file",
    "merge",
    "reshard",
    "safe_open",
    "split",
    "stratified_split",
]
