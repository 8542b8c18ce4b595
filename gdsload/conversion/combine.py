"""The dataset, combined from its parts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence

from gdsload.conversion.conversion_options import ConvertOptions
from gdsload.conversion.staging import part_folder
from gdsload.errors import ChecksumError
from gdsload.loader.dataset import ShardDataset
from gdsload.loader.loader import DataLoader
from gdsload.shards.durable import fsync_path
from gdsload.shards.format.index import INDEX_NAME, Index, IndexEntry, parse_index
from gdsload.shards.format.metadata import Metadata
from gdsload.shards.format.stored import StoredSchema
from gdsload.shards.publish import Publication, remove_interrupted
from gdsload.shards.shard_folders import shard_name
from gdsload.shards.status import naming, write_error
from gdsload.shards.writer import ShardWriter

_BATCH_BYTES = 16 * 2**20


def publish(
    path: str,
    stage: str,
    stored: StoredSchema,
    parts: int,
    *,
    overwrite: bool,
    spread_over: Sequence[str] = (),
    metadata: Metadata | None = None,
) -> None:
    """Make the dataset appear at a path: the shards of all parts in the stage, in order.

    Shards are spread over absolute folders; one that a part has in one of them stays there.

    Raises:
        WriteError: if the disk is full or fails.
    """
    place = Publication(path, overwrite=overwrite, spread_over=spread_over)
    entries: list[IndexEntry] = []
    try:
        with naming(write_error, "the dataset cannot be put together", path):
            for number in range(parts):
                folder = part_folder(stage, number)
                with open(os.path.join(folder, INDEX_NAME), "rb") as file:
                    index = parse_index(file.read(), folder)
                for entry in index.shards:
                    name = shard_name(len(entries))
                    source = os.path.realpath(os.path.join(folder, entry.file), strict=True)  # no name for a link
                    _link(source, place.place(name, _turn(source, spread_over, len(entries))))
                    entries.append(IndexEntry(name, entry.samples, entry.bytes, entry.sha256))
            place.write_index(Index(stored, tuple(entries), metadata or {}))
    except BaseException:
        place.abandon()
        raise
    place.publish()


def _turn(source: str, spread_over: Sequence[str], number: int) -> int:
    """The folder that a part's shard is in, so that nothing has to be copied; else the next folder in turn."""
    there = os.path.dirname(os.path.dirname(source))
    return next((turn for turn, folder in enumerate(spread_over) if os.path.realpath(folder) == there), number)


def _link(source: str, target: str) -> None:
    """A second name for a file, so that the part stays whole until the dataset is; else a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        fsync_path(target)


def put_in_order(stage: str, stored: StoredSchema, parts: int, spread_over: Sequence[str] = ()) -> ShardDataset:
    """The samples of all parts as one dataset, in the stage; see `publish`."""
    ordered = os.path.join(stage, "ordered")
    if os.path.isdir(ordered):
        remove_interrupted(ordered, stage)
    publish(ordered, stage, stored, parts, overwrite=False, spread_over=spread_over)
    return ShardDataset(ordered)


def shuffle_into(
    path: str,
    dataset: ShardDataset,
    options: ConvertOptions,
    *,
    overwrite: bool,
    progress: Callable[[int], None],
    spread_over: Sequence[str] = (),
    metadata: Metadata | None = None,
) -> None:
    """Write the samples of a dataset to a new path, in a random order, and report progress by their number.

    Memory is bounded: samples are read where they are.

    Raises:
        ChecksumError: if one of them is damaged since an earlier run has written it.
        WriteError: if the disk is full or fails.
    """
    try:
        dataset.verify()
    except ChecksumError as error:
        remedy = "Run it again with `restart=True`: it begins again."
        raise ChecksumError("the converted samples are damaged", problems=error.problems, remedy=remedy) from error
    mean = max(dataset.num_bytes // max(len(dataset), 1), 1)
    batch = max(_BATCH_BYTES // mean, 1)
    with (
        ShardWriter(
            path, dataset.schema,
            shard_bytes=options.shard_bytes, overwrite=overwrite, pack_fields=options.pack_fields,
            spread_over=spread_over, metadata=metadata,
        ) as writer,
        DataLoader(
            dataset, batch, "full", seed=options.shuffle_seed or 0, device="cpu", ragged="offsets",
            ranks=(0, 1),  # all samples, also where torch.distributed is initialised
        ) as loader,
    ):  # fmt: skip
        for values in loader:
            writer.write_batch(values)
            progress(writer.samples)
