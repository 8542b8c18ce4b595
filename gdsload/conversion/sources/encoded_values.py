"""Values that are bytes in a container which does not say what they are: decoded as the user says. Never unpickled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from gdsload.conversion.reasons import reading
from gdsload.conversion.sources.npy import decode_npy
from gdsload.conversion.sources.pictures import ImageForm

Encoding = Literal["bytes", "text", "npy", "image"]
"""The forms of values: bytes as they are, UTF-8, a `.npy` file, an image file."""


def decoded_fields(name: str, content: bytes, encoding: str, look: ImageForm, where: str) -> dict[str, Any]:
    """The fields that a value becomes in a sample.

    Raises:
        FormatError: if it is damaged, or something else.
    """
    if encoding == "image":
        return look.fields(name, content, where)
    decoders: Mapping[str, Callable[[bytes], Any]] = {
        "bytes": bytes, "text": partial(str, encoding="utf-8"), "npy": decode_npy,
    }  # fmt: skip
    # numpy parses headers as Python does
    with reading(f"it cannot be decoded as {encoding}", where, ValueError, SyntaxError, EOFError):
        return {name: decoders[encoding](content)}
