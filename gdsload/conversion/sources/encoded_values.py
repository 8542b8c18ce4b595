"""Values that are bytes in a container which does not say what they are: decoded as the user says. Never unpickled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from gdsload.conversion.reasons import reading
from gdsload.conversion.sources.npy import decode_npy
from gdsload.conversion.sources.pictures import ImageForm
from gdsload.shards.format.header import header_bytes, parse_header
from gdsload.shards.values import torch_dtype

__all__ = ["ENCODINGS", "decode_safetensors", "decoded_fields"]

ENCODINGS = ("bytes", "text", "npy", "image", "safetensors")
"""The forms of values: bytes as they are, UTF-8, a `.npy` file, an image file, a file of safetensors."""


def decoded_fields(name: str, content: bytes, encoding: str, look: ImageForm, where: str) -> dict[str, Any]:
    """The fields that a value becomes in a sample: one with its name, or for safetensors one for each tensor.

    Raises:
        FormatError: if it is damaged, or something else.
    """
    if encoding == "image":
        return look.fields(name, content, where)
    if encoding == "safetensors":
        return dict(decode_safetensors(content, where))
    decoders: Mapping[str, Callable[[bytes], Any]] = {
        "bytes": bytes, "text": partial(str, encoding="utf-8"), "npy": decode_npy,
    }  # fmt: skip
    # numpy parses headers as Python does
    with reading(f"it cannot be decoded as {encoding}", where, ValueError, SyntaxError, EOFError):
        return {name: decoders[encoding](content)}


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
