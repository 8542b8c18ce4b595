"""The check that peers get the same batches, batch by batch: `Verify(peers=True)`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xxhash

from gdsload.errors import LoaderClosedError, OptionError, ReadError
from gdsload.loader.epoch import Epoch
from gdsload.loader.rank_groups import gather_texts
from gdsload.loader.state import Place
from gdsload.shards.values import memory_of

if TYPE_CHECKING:
    from gdsload.loader.life import Life


class PeerCheckedEpoch(Epoch):
    """An epoch whose batches are compared with those of the peers, which all have to ask for theirs.

    An error of one of them is raised by all, so that none waits for another. `peers` gives the process groups that
    reach them.
    """

    _goes_on = False  # the peers need each batch

    def __init__(
        self,
        owner: Life,
        finish: Callable[[Any, Place, int], Any] | None,
        peers: Callable[[], list[Any]],
    ) -> None:
        super().__init__(owner, finish)
        self._peers = peers

    def _finished(self, entered: float) -> tuple[Any, int]:
        """See `Epoch`. An error comes before the batch is handed out: a run that is resumed gets the batch."""
        try:
            batch, size = super()._finished(entered)
            digest = batch_digest(batch)
        except StopIteration:
            self._compare("no batch")
            raise
        except LoaderClosedError:  # the consumer has closed it
            raise
        except Exception as error:
            self._tell(error=f"{type(error).__name__}: {error}")
            raise
        self._compare(digest)
        return batch, size

    def _compare(self, mine: str) -> None:
        answers = self._tell(digest=mine)
        if failed := [one for one in answers if one["error"] is not None]:
            first = failed[0]
            raise ReadError(f"rank {first['rank']}, which gets the same batches, failed: {first['error']}")
        if len({(one["epoch"], one["digest"]) for one in answers}) > 1:
            shown = ", ".join(f"rank {one['rank']}: {one['digest']} (epoch {one['epoch']})" for one in answers)
            raise OptionError(
                f"ranks that are to get the same batches do not, at step {answers[0]['step']}: {shown}",
                remedy="Make the loader in all of them with the same dataset, options and transforms; what a "
                "transform draws must come from the generator that it is given.",
            )

    def _tell(self, digest: str = "", error: str | None = None) -> list[dict[str, Any]]:
        place: Place | None = getattr(self, "place", None)  # it has none if it could not begin
        epoch, step = (None, None) if place is None else (place.epoch, place.step)
        answers = {"rank": torch.distributed.get_rank(), "epoch": epoch, "step": step, "digest": digest, "error": error}
        found: list[dict[str, Any]] = gather_texts(answers, self._peers())
        return sorted(found, key=lambda one: int(one["rank"]))


def batch_digest(batch: Any) -> str:
    """A hash of everything in a batch: tensors, arrays, texts, bytes and numbers, in mappings, lists and dataclasses.

    Tensors are copied to the CPU for it. Anything else counts by its type alone.
    """
    found = xxhash.xxh3_64()
    _hash(batch, found)
    return found.hexdigest()


def _hash(value: Any, into: xxhash.xxh3_64) -> None:
    _add(into, type(value).__name__)
    if isinstance(value, torch.Tensor):
        _hash_tensor(value, into)
    elif isinstance(value, np.ndarray):
        _add(into, f"{value.dtype} {value.shape}")
        into.update(repr(value.tolist()).encode() if value.dtype.hasobject else np.ascontiguousarray(value).tobytes())
    elif isinstance(value, str | bytes | int | float | complex | None):
        _add(into, repr(value))
    elif isinstance(value, Mapping):
        for key, part in value.items():
            _add(into, repr(key))
            _hash(part, into)
    elif isinstance(value, list | tuple):
        _add(into, str(len(value)))
        for part in value:
            _hash(part, into)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for one in dataclasses.fields(value):
            _hash(getattr(value, one.name), into)


def _hash_tensor(tensor: torch.Tensor, into: xxhash.xxh3_64) -> None:
    _add(into, f"{tensor.dtype} {tensor.layout}")
    if tensor.is_nested:
        for part in tensor.unbind():
            _hash_tensor(part, into)
    elif tensor.layout == torch.strided:
        _add(into, str(tuple(tensor.shape)))
        into.update(memory_of(tensor).data)  # as bytes, since numpy knows not all of torch's element types


def _add(into: xxhash.xxh3_64, text: str) -> None:
    into.update(f"{text};".encode())
