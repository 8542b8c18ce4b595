"""Windows in batches: what codecs make of the rows of all their samples, in the shape of windows."""

from __future__ import annotations

from typing import Any

import torch

from gdsload.engine.codecs import FieldCodec
from gdsload.engine.group_lengths import BatchLengths

__all__ = ["WindowCodec"]


class WindowCodec(FieldCodec):
    """Fields of windows of consecutive samples: tensors ``[batch, length, *shape]``, without a copy.

    Args:
        codec: what the column holds; `as_stored`, so that every sample has rows of one shape.
        length: samples of a window.
    """

    as_stored = True

    def __init__(self, codec: FieldCodec, length: int) -> None:
        super().__init__(codec.name, codec.stored)
        self._codec, self._length = codec, length

    def put(self, batch: dict[str, Any], values: torch.Tensor, lengths: BatchLengths | None = None) -> None:
        """See `FieldCodec.put`."""
        rows: dict[str, Any] = {}
        self._codec.put(rows, values, lengths)
        for name, tensor in rows.items():
            batch[name] = tensor.unflatten(0, (len(tensor) // self._length, self._length))
