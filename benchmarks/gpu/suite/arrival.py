"""The arrival of batches on the device, by a copy where a contender leaves them in CPU memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.contenders.base import Contender

__all__ = ["arriving", "copied"]


def arriving(contender: Contender, *, endless: bool) -> Iterator[Any]:
    """Batches of a contender, each on the device and ready on the current stream."""
    batches = contender.batches(endless=endless)
    return copied(map(contender.data, batches), contender.job.device) if contender.host else batches


def copied(batches: Iterator[Any], device: torch.device) -> Iterator[torch.Tensor]:
    """Batches in CPU memory, pinned where they are not and copied on a side stream, the next one while one is out."""
    if device.type != "cuda":
        yield from map(torch.as_tensor, batches)
        return
    from gdsload.system.streams import side_stream  # late: a peer's, and other trees have it elsewhere

    stream, under_way = side_stream(device), deque[tuple[torch.Tensor, torch.cuda.Event]]()
    for batch in batches:
        host = torch.as_tensor(batch)
        host = host if host.is_pinned() else host.pin_memory()
        with torch.cuda.stream(stream):
            copied = host.to(device, non_blocking=True)
            under_way.append((copied, stream.record_event()))
        del batch, host, copied  # while it is out, nobody else holds it
        if len(under_way) > 1:
            yield _ready(*under_way.popleft())
    while under_way:
        yield _ready(*under_way.popleft())


def _ready(batch: torch.Tensor, copied: torch.cuda.Event) -> torch.Tensor:
    current = torch.cuda.current_stream(batch.device)
    current.wait_event(copied)
    batch.record_stream(current)
    return batch
