"""Datasets whose content is a formula of the sample's number, so that batches are compared without a second reader."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

from gdsload import Field, ShardWriter

IMAGE = (64, 96)
DECODED = Field("uint8", (3, *IMAGE))
LABEL = {"label": Field("int64")}
RAGGED = {"ids": Field("int32", (None,)), "points": Field("float32", (None, 2)), "text": Field("str")}
KINDS: dict[str, tuple[dict[str, Field], int, str]] = {
    "rows": ({"x": Field("int32", (1024,))}, 16_000, "8MiB"),
    "pictures": ({"image": Field("uint8", (3, 224, 224)), **LABEL}, 1600, "16MiB"),
    "ragged": ({**LABEL, **RAGGED}, 20_000, "3MiB"),
    "packed": ({**{f"s{n}": Field("int32") for n in range(9)}, "odd": Field("uint8", (7,))}, 60_000, "512KiB"),
    "tokens": ({"at": Field("int32", (3,)), "token": Field("uint16")}, 500_000, "2MiB"),
    "jpegs": ({"image": Field("image"), **LABEL}, 2000, "1MiB"),
}
"""Of each dataset: its fields, of which transforms invert the first one; its samples; the bytes of a shard."""


def words(ids: torch.Tensor, places: torch.Tensor, name: str) -> torch.Tensor:
    """32 bits for each id and place of a field, where both broadcast; int32, which wraps on all devices."""
    found = ids.to(torch.int32) * 1_640_531_527 + places.to(torch.int32) * 1_013_904_223 + crc32(name.encode()) % 65_521
    return (found ^ (found >> 15)) * 739_982_445


def row_counts(ids: torch.Tensor, name: str) -> torch.Tensor:
    """The rows of a ragged field of each sample: 0 to 127."""
    return words(ids, -torch.ones_like(ids), name).to(torch.int64) & 127


def rows_of(ids: torch.Tensor, name: str, total: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The rows of a ragged field of some samples: of each its sample's place in `ids` and its own place in the sample,
    and the ends of the samples."""
    counts = row_counts(ids, name)
    of = torch.repeat_interleave(torch.arange(len(ids), device=ids.device), counts, output_size=total)
    ends = counts.cumsum(0)
    return of, torch.arange(total, device=ids.device) - (ends - counts)[of], ends


def row_bytes(ids: torch.Tensor, name: str, field: Field, places: torch.Tensor | int = 0) -> torch.Tensor:
    """The bytes of rows, each of a sample and a place in it: uint8 ``[len(ids), bytes of a row]``."""
    if field.kind == "image":  # grey squares of 8 x 8 pixels, which JPEG of the best quality keeps as they are
        high, wide = IMAGE[0] // 8, IMAGE[1] // 8
        grey = (words(ids[:, None], torch.arange(high * wide, device=ids.device), name) & 255).to(torch.uint8)
        squares = grey.view(-1, 1, high, 1, wide, 1).expand(-1, 3, -1, 8, -1, 8)
        return squares.reshape(len(ids), -1)
    count = -(-field.row_bytes // 4)
    of_row = torch.arange(count, device=ids.device) + places * count
    return _bytes(words(ids[:, None], of_row, name)).view(len(ids), 4 * count)[:, : field.row_bytes]


def text_of(number: int) -> str:
    return f"sample {number} {'€' * (number % 4)}"


def write(folder: Path, name: str, scale: float) -> None:
    """Write a dataset, of a share of its samples."""
    fields, samples, shard_bytes = KINDS[name]
    with ShardWriter(folder / name, fields, shard_bytes=shard_bytes) as writer:
        for ids in torch.arange(max(int(samples * scale), 60)).split(500):
            writer.write_batch({name: _written(ids, name, field) for name, field in fields.items()})


def _written(ids: torch.Tensor, name: str, field: Field) -> Any:
    """The values of a field of some samples, as `write_batch` takes them."""
    if field.kind == "str":
        return [text_of(number) for number in ids.tolist()]
    if field.kind == "image":
        return [_jpeg(image) for image in row_bytes(ids, name, field).view(-1, *DECODED.row_shape)]
    dtype = getattr(torch, field.dtype.name)
    if not field.ragged:
        return row_bytes(ids, name, field).contiguous().view(dtype).view(-1, *field.row_shape)
    of, place, ends = rows_of(ids, name, int(row_counts(ids, name).sum()))
    values = row_bytes(ids[of], name, field, place[:, None])
    return values.view(dtype).view(-1, *field.row_shape), torch.cat([ends[:1] * 0, ends])


def _jpeg(image: torch.Tensor) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).save(out, "JPEG", quality=100)
    return out.getvalue()


def differences(dataset: str, batch: dict[str, Any], ids: torch.Tensor, form: str) -> dict[str, torch.Tensor | int]:
    """How many bytes of each field differ from the formula, on the batch's device; a wrong form raises AssertionError.

    `ids` are those of the samples, or the samples of each window; int64 on the CPU, ``[batch]`` or ``[batch, length]``.
    """
    found: dict[str, torch.Tensor | int] = {}
    fields, _, _ = KINDS[dataset]
    first = next(iter(fields))
    device = batch[first].device
    flat = ids.reshape(-1).to(device, non_blocking=True)
    for name, field in fields.items():
        value = batch[name]
        if field.kind == "str":
            found[name] = sum(one != text_of(number) for one, number in zip(value, ids.tolist(), strict=True))
        elif field.kind == "ragged":
            counts = row_counts(ids, name)  # of the CPU's ids, so that nothing waits for the GPU
            rows = rows_of(flat, name, int(counts.sum()))
            want = row_bytes(flat[rows[0]], name, field, rows[1][:, None])
            if form == "padded":
                assert value[0].shape[:2] == (len(ids), int(counts.max())), (name, value[0].shape)
            found[name] = _ragged_differences(value, form, rows, want)
        else:
            stored = DECODED if field.kind == "image" else field
            shape = tuple(value.shape), str(value.dtype)
            assert shape == (tuple(ids.shape) + stored.row_shape, f"torch.{stored.dtype.name}"), (name, shape)
            want = row_bytes(flat, name, field).reshape(-1)
            found[name] = (_bytes(value) != want).sum()
            if name == first and "inverted" in batch:
                found["inverted"] = (_bytes(batch["inverted"]) != ~want).sum()
    return found


def _ragged_differences(
    value: Any, form: str, rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor], want: torch.Tensor
) -> torch.Tensor:
    of, place, ends = rows
    if form == "padded":
        padded, counts = value
        found = _bytes(padded).view(-1, want.shape[1])
        expected = torch.zeros_like(found).index_copy_(0, of * padded.shape[1] + place, want)
        return (found != expected).sum() + (counts.cumsum(0) != ends).sum()
    values, offsets = (value.values(), value.offsets()) if form == "jagged" else value[:2]
    assert len(values) == len(want), (len(values), len(want))
    return (_bytes(values) != want.reshape(-1)).sum() + (offsets[1:] != ends).sum() + (offsets[:1] != 0).sum()


def _bytes(value: torch.Tensor) -> torch.Tensor:
    return value.reshape(-1)[:, None].view(torch.uint8).reshape(-1)  # also of a column, whose stride is that of rows
