"""Values that are bytes in a container which does not say what they are: decoded as the user says. Never unpickled."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from gdsload.conversion.sources.npy import decode_npy
from gdsload.conversion.sources.pictures import ImageForm, decode_image
from gdsload.errors import FormatError, OptionError
from gdsload.shards.format.header import header_bytes, parse_header
from gdsload.shards.values import torch_dtype

__all__ = ["ENCODINGS", "decode_safetensors", "decode_value"]

ENCODINGS = ("bytes", "text", "npy", "image", "safetensors")
"""What values may be: bytes as they are, UTF-8, a `.npy` file, an image file, a file of safetensors."""


def decode_value(content: bytes, encoding: str, look: ImageForm, where: str) -> Any:
    """A value out of its bytes; of safetensors a mapping from names to tensors.

    Args:
        content: the bytes.
        encoding: one of `ENCODINGS`.
        look: what images are made into.
        where: where it comes from, for errors.

    Raises:
        FormatError: if it is damaged, or something else.
    """
    decoders: Mapping[str, Callable[[bytes], Any]] = {
        "bytes": bytes,
        "text": partial(str, encoding="utf-8"),
        "npy": decode_npy,
        "image": lambda content: decode_image(io.BytesIO(content), look, where),
        "safetensors": partial(decode_safetensors, where=where),
    }
    try:
        return decoders[encoding](content)
    except (ValueError, SyntaxError, EOFError) as error:  # numpy parses headers as Python does
        if isinstance(error, FormatError | OptionError):
            raise
        raise FormatError(f"it cannot be decoded as {encoding}: {str(error)[:200]}", file=where) from None


def decode_safetensors(content: bytes, where: str) -> dict[str, torch.Tensor]:
    """The tensors of a file of safetensors, by name.

    Raises:
        FormatError: if it is damaged.
    """
    length = header_bytes(content[:8], len(content), where)
    header = parse_header(content[:length], len(content), where)
    return {
        entry.name: torch.frombuffer(bytearray(content[entry.begin : entry.end]), dtype=torch_dtype(entry.dtype))
        .clone()
        .reshape(entry.shape)
        if entry.end > entry.begin
        else torch.empty(entry.shape, dtype=torch_dtype(entry.dtype))
        for entry in header.tensors.values()
    }
