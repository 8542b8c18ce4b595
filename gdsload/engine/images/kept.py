"""Decoded images that are kept for later epochs, where every epoch makes the same of them.

What is kept is what a batch has of an image, but not flipped: a flip is drawn again, and moves whole values. An image
that is kept is never given up again, so it need not be read any more: planners of reads ask `KeptImages.holds`, and
an image without bytes is one that was held by then. Batches are copies, which their user may change.

Invariants:
    1. A sample's address is set after its bytes are in place, by one thread, and never changed.
    2. Memory is never taken beyond the budget, and never given back before `close`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.backends.base import TierStatus
from gdsload.engine.images.decode import HostImages, ImageBatch
from gdsload.engine.images.encoded import EncodedImages
from gdsload.engine.images.frames import Draws, flips
from gdsload.shards.gather_host import gather_rows
from gdsload.system.arrays import IntArray
from gdsload.system.units import format_bytes
from gdsload.transforms import DecodeImage

_CHUNK_BYTES = 2**26
"""Memory is taken in pieces of this size, as images come."""
_ALIGNMENT = 16
_LITTLE = 100
"""The budget for images of several sizes is used up when less than this part of it is left."""


class Keep(NamedTuple):
    """The budget of a store of decoded images: how many samples are in all shards, and bytes of images at most."""

    samples: int
    most_bytes: int


def as_kept(decode: Mapping[str, DecodeImage]) -> dict[str, DecodeImage]:
    """The decoding of images if those that can be are kept: these without flips."""
    return {name: replace(one, flip=0.0) if one.repeatable else one for name, one in decode.items()}


@dataclass(slots=True)
class _Field:
    """The kept images of a field.

    Attributes:
        address: of each sample's image; 0 where none is kept.
        taken: for which samples there is, or will be, memory.
        views: of those that differ in size, each by its sample.
    """

    wanted: DecodeImage
    address: IntArray
    taken: NDArray[np.bool_]
    views: dict[int, torch.Tensor] = field(default_factory=dict)


class _Part(NamedTuple):
    """A field of a batch: which of its images are decoded, and the batch of those."""

    name: str
    whole: ImageBatch
    samples: IntArray
    fresh: IntArray
    decoded: ImageBatch


class KeptImages:
    """Decodes the images of batches, and keeps them.

    `images` decodes them, but for flips of those that are kept: see `as_kept`.
    """

    def __init__(self, wanted: Mapping[str, DecodeImage], images: HostImages, keep: Keep, name: str = "memory") -> None:
        self.images, self.keep, self._name = images, keep, name
        self._fields = {
            name: _Field(one, np.zeros(keep.samples, np.int64), np.zeros(keep.samples, np.bool_))
            for name, one in wanted.items()
            if one.repeatable
        }
        self._lock = threading.Lock()
        self._chunks: list[torch.Tensor] = []
        self._left = torch.empty(0, dtype=torch.uint8, device=images.device)
        self._held = self._hits = self._count = 0
        self._trouble = ""

    def __call__(self, batches: Sequence[ImageBatch], stopped: Callable[[], bool]) -> None:
        """See `HostImages`."""
        parts = [self._part(name, one) for one in batches for name in self._fields]
        others = [name for name in self.images.options if name not in self._fields]
        rest = [one._replace(batch={name: one.batch[name] for name in others}) for one in batches if others]
        self.images([*rest, *(part.decoded for part in parts if len(part.fresh))], stopped)
        for one, made in zip(batches, rest, strict=False):
            one.batch.update(made.batch)
        for part in parts:
            self._complete(part)

    def holds(self, name: str, samples: IntArray) -> NDArray[np.bool_] | None:
        """A mask of the samples whose images are kept; None if none of that field ever is."""
        found = self._fields.get(name)
        return None if found is None else found.address[samples] != 0

    def tier(self) -> TierStatus:
        """The status of the tier: the bytes and images that it holds, and the bytes read from it."""
        return TierStatus(self.keep.most_bytes, self._held, 0, self._hits, trouble=self._trouble, images=self._count)

    def close(self) -> None:
        """Give the memory back, and end the threads; may be called twice."""
        self.images.close()
        with self._lock:
            self._trouble = self._trouble or "the loader was closed"
            self._chunks.clear()
            self._left = self._left[:0].clone()
            for one in self._fields.values():
                one.views.clear()
                one.address[:] = 0

    def ordered(self) -> AbstractContextManager[None]:
        """The context in which images are copied: all is done when it ends."""
        return nullcontext()

    def gather(self, addresses: IntArray, row_bytes: int, out: torch.Tensor, _begins: IntArray) -> None:
        """Copy images of one size into a batch; `_begins` has all memory that images are in, in rising order."""
        gather_rows(addresses, row_bytes, out.data_ptr())

    def _part(self, name: str, one: ImageBatch) -> _Part:
        encoded: EncodedImages = one.batch[name]
        samples = one.samples()
        fresh = np.flatnonzero((encoded.lengths > 0) | (self._fields[name].address[samples] == 0))
        # Of those that are held there are no bytes, so the others' follow each other.
        given = EncodedImages(encoded.values, encoded.lengths[fresh])
        numbers = fresh.tolist()
        decoded = one._replace(
            batch={name: given},
            draws=Draws(one.draws.key, one.draws.numbers[fresh]),
            place=lambda number: one.place(numbers[number]),
        )
        return _Part(name, one, samples, fresh, decoded)

    def _complete(self, part: _Part) -> None:
        """Put a field into its batch, and keep what was decoded."""
        kept, batch, name = self._fields[part.name], part.whole.batch, part.name
        count = len(part.samples)
        good = np.ones(len(part.fresh), np.bool_)
        if kept.wanted.on_error == "zeros":
            mask = torch.ones(count, dtype=torch.bool, device="cpu")
            if len(part.fresh):
                good = part.decoded.batch[f"{name}.decoded"].numpy()
                mask[torch.from_numpy(part.fresh)] = torch.from_numpy(good)
            batch[f"{name}.decoded"] = mask
        made = part.decoded.batch[name] if len(part.fresh) else []
        done: list[Callable[[], None]] = []
        with self.ordered():
            found = self._images_of(part, made)
            self._add(kept, part.samples[part.fresh], made, np.flatnonzero(good), done)
            flipped = np.flatnonzero(flips(kept.wanted, part.whole.draws)).tolist()
            if isinstance(found, list):
                for number in flipped:
                    found[number] = found[number].flip(-1)
            elif flipped:
                found[flipped] = found[flipped].flip(-1)
        for publish in done:
            publish()
        batch[name] = found

    def _images_of(self, part: _Part, made: Any) -> Any:
        """The images of a batch, of which some were decoded just now: memory that nobody else has."""
        kept, samples, fresh = self._fields[part.name], part.samples, part.fresh
        if kept.wanted.rows_and_columns is None:
            found = dict(zip(fresh.tolist(), made, strict=True))
            for number, sample in enumerate(samples.tolist()):
                if number not in found:
                    found[number] = kept.views[sample].clone()
                    self._note_hits(found[number].nbytes)
            return [found[number] for number in range(len(samples))]
        if len(fresh) == len(samples):
            return made
        out = self.images.empty_batch(part.name, len(samples))
        row_bytes, addresses = out.nbytes // len(samples), kept.address[samples]
        memory = [chunk.data_ptr() for chunk in self._chunks]
        if len(fresh):
            addresses[fresh] = made.data_ptr() + np.arange(len(fresh)) * row_bytes
            memory.append(made.data_ptr())
        self.gather(addresses, row_bytes, out, np.array(sorted(memory), np.int64))
        self._note_hits((len(samples) - len(fresh)) * row_bytes)
        return out

    def _note_hits(self, nbytes: int) -> None:
        with self._lock:
            self._hits += nbytes

    def _add(self, kept: _Field, samples: IntArray, made: Any, good: IntArray, done: list[Callable[[], None]]) -> None:
        """Keep images, as long as there is room.

        `samples` has the sample of each image, `good` the numbers of those that could be decoded. `done` gets what
        makes them known, once the copies are done.
        """
        if self._trouble or not len(good):
            return
        _, first = np.unique(samples[good], return_index=True)  # a sample may come twice in a batch
        with self._lock:
            numbers = good[np.sort(first)]
            numbers = numbers[~kept.taken[samples[numbers]]]
            kept.taken[samples[numbers]] = True
        if kept.wanted.rows_and_columns is None:
            for number in numbers.tolist():
                image, sample = made[number], int(samples[number])
                for memory in self._memory(1, image.nbytes, self.keep.most_bytes // _LITTLE):
                    view = _as(memory, image)
                    view.copy_(image)
                    done.append(partial(self._publish, kept, samples[number : number + 1], memory, sample, view))
            return
        row_bytes, low = made.nbytes // len(made), 0
        for memory in self._memory(len(numbers), row_bytes, row_bytes):
            count = len(memory) // row_bytes
            some = numbers[low : low + count]
            memory.copy_(_flat(made if count == len(made) else made[torch.from_numpy(some).to(made.device)]))
            done.append(partial(self._publish, kept, samples[some], memory))
            low += count

    def _publish(
        self, kept: _Field, samples: IntArray, memory: torch.Tensor, sample: int = 0, view: torch.Tensor | None = None
    ) -> None:
        """Make kept images known, whose bytes are in place."""
        with self._lock:
            self._held += memory.nbytes
            self._count += len(samples)
        if view is not None:
            kept.views[sample] = view
        kept.address[samples] = memory.data_ptr() + np.arange(len(samples)) * (memory.nbytes // len(samples))

    def _memory(self, count: int, nbytes: int, least: int) -> Iterator[torch.Tensor]:
        """Memory for so many images of so many bytes, in runs, as far as there is room.

        No image is kept any more once less than `least` bytes are left: a smaller image may still have room.
        """
        while count and nbytes:
            with self._lock:
                if len(self._left) < nbytes and not self._another(nbytes, least):
                    return
                some = min(len(self._left) // nbytes, count)
                found = self._left[: some * nbytes]
                self._left = self._left[-(-some * nbytes // _ALIGNMENT) * _ALIGNMENT :]
            count -= some
            yield found

    def _another(self, nbytes: int, least: int) -> bool:
        """Take another chunk; False if there is no room for an image in it."""
        room = self.keep.most_bytes - sum(map(len, self._chunks))
        if max(room, len(self._left)) < least:
            self._trouble = self._trouble or f"the budget of {format_bytes(self.keep.most_bytes)} is used up"
        if self._trouble or room < nbytes:
            return False
        try:
            whole = max(_CHUNK_BYTES // nbytes, 1) * nbytes
            chunk = torch.empty(min(whole, room), dtype=torch.uint8, device=self.images.device)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            self._trouble = f"{self._name} is used up: {error}".splitlines()[0]
            return False
        self._chunks.append(chunk)
        self._left = chunk
        return True


def _flat(images: torch.Tensor) -> torch.Tensor:
    """The bytes of images in the order in which they are stored."""
    inner = images if images.is_contiguous() else images.movedim(-3, -1)
    return inner.reshape(-1).view(torch.uint8)


def _as(memory: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
    """Memory as an image like another one."""
    values = memory.view(image.dtype)
    if image.is_contiguous():
        return values.view(image.shape)
    return values.view(image.movedim(0, -1).shape).movedim(-1, 0)
