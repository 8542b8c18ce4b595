"""Sounds: files of samples, decoded by libsndfile as they are, never at another rate."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.input_files import FileOptions, FileSource, open_file, stamps
from gdsload.conversion.reasons import reading
from gdsload.conversion.row_source import classes_of, run_parts
from gdsload.conversion.source import FieldChoice, Item, Part
from gdsload.conversion.sources.extras import need
from gdsload.errors import FormatError, OptionError

SOUNDS = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".aiff", ".aif")
"""How names of files of sounds end."""

_TYPES = {
    "PCM_S8": "int16", "PCM_U8": "int16", "PCM_16": "int16", "ULAW": "int16", "ALAW": "int16",
    "PCM_24": "int32", "PCM_32": "int32", "DOUBLE": "float64",
}  # fmt: skip
_ORDERS: dict[bytes, Literal["little", "big"]] = {b"RIFF": "little", b"FORM": "big"}
_PIECE_FRAMES = 2**18
_NO_LENGTH = 0xFFFFFFFF  # what writes to a pipe does not know it


def sound_fields(name: str, content: bytes, where: str, dtype: str | None = None) -> dict[str, Any]:
    """The fields of a sound: its samples, ``[frames]`` or ``[frames, channels]``, and ``NAME.sampling_rate``, int32.

    Samples have the type that holds those of the file: int16 for up to 16 bits (fewer are the upper ones), int32 for 24
    and 32 bits, float64 for such, and float32 for other and for lossy ones.

    Args:
        name: the field.
        content: the file's bytes.
        where: where it comes from, for errors.
        dtype: ``"float32"`` or ``"float64"``: samples of that type, of whole numbers as shares of their type's range.

    Raises:
        FormatError: if it is damaged, has no frames, or is no sound that libsndfile knows.
        OptionError: if soundfile is missing.
    """
    library = need("soundfile", file=where, package='"gdsload[audio]"', purpose="decoding sounds")
    with reading("the sound cannot be decoded", where, library.SoundFileError, ValueError):
        _check_length(content)
        with library.SoundFile(io.BytesIO(content)) as file:
            rate, frames = int(file.samplerate), int(file.frames)
            kind = dtype or _TYPES.get(file.subtype, "float32")
            pieces: list[NDArray[Any]] = []
            # A length in a header counts only once the samples are there.
            while len(piece := file.read(_PIECE_FRAMES, dtype=kind)):
                pieces.append(piece)
    found = sum(map(len, pieces))
    # An MP3 file says how long it is only in a header that not all have.
    guessed = content[:3] == b"ID3" or content[:1] == b"\xff"
    guessed = guessed and not any(mark in content[:_PIECE_FRAMES] for mark in (b"Xing", b"Info"))
    if not found:
        raise FormatError("the sound has no frames: it is empty, or a recording that broke off", file=where)
    if found != frames and not guessed:
        raise FormatError(f"the sound has {found} frames, but says that it has {frames}", file=where)
    return {name: np.concatenate(pieces), f"{name}.sampling_rate": np.int32(rate)}


def _check_length(content: bytes) -> None:
    """Refuse a WAV or AIFF file that is cut short, of which libsndfile takes what is there."""
    if not content:
        raise ValueError("the file is empty")
    order = _ORDERS.get(content[:4])
    size = int.from_bytes(content[4:8], order) if order else 0
    if len(content) < size + 8 and size != _NO_LENGTH:
        raise ValueError(f"it ends after {len(content)} bytes, but says that it has {size + 8}")


class AudioFolderSource(FieldChoice, FileSource):
    """Files of sounds, each a sample.

    Fields: ``audio``, ragged, the samples as the file has them: int16, int32, float32 or float64, ``[frames]`` or
    ``[frames, channels]``, whole numbers in the scale of their type; ``audio.sampling_rate``, int32, that of the file,
    since none is made into another; and if the files are in folders side by side, ``label``, the number of the folder
    in the order of their names.

    Args:
        path: a file, or a folder of them.
        keep_encoded: keep the bytes of the files; then there is no ``audio.sampling_rate``.
        with_key: add a text field ``key``, the path of the file from that folder.
        dtype: ``"float32"`` or ``"float64"``: samples of that type from -1 to 1, whatever the type in the file.
    """

    kind = "audio files"
    threads = False
    suffixes = SOUNDS
    decisive = ("keep_encoded", "with_key", "dtype")

    def __init__(
        self,
        path: str,
        *,
        keep_encoded: bool = False,
        with_key: bool = False,
        dtype: Literal["float32", "float64"] | None = None,
        **files: Unpack[FileOptions],
    ) -> None:
        if dtype is not None and keep_encoded:
            raise OptionError(
                f"is {dtype!r}, but `keep_encoded` keeps the files' bytes", option="dtype", remedy="Pass one of them."
            )
        super().__init__(path, **files)
        self.keep_encoded, self.with_key, self.dtype = keep_encoded, with_key, dtype
        self._files = self.files.find(SOUNDS, bad=True)
        self._classes = classes_of(self._files)

    def all_files(self) -> list[str]:
        return self._files

    def metadata(self) -> dict[str, Any]:
        return {"classes": {"label": self._classes}} if self._classes else {}

    def parts(self, target_bytes: int) -> list[Part]:
        return run_parts("files", [int(stamp[1]) for stamp in stamps(self._files)], target_bytes)

    def read(self, part: Part) -> Iterator[Item]:
        low, high = (int(edge) for edge in part.where)
        for file in self._files[low:high]:
            yield Item(file, partial(self._sample, file), 1)

    def _sample(self, file: str) -> dict[str, Any]:
        with reading("the file cannot be read", file, OSError), open_file(file) as opened:
            content = opened.read()
        found: dict[str, Any] = {"audio": [content]}
        if not self.keep_encoded:
            found = {name: value[None] for name, value in sound_fields("audio", content, file, self.dtype).items()}
            # The first ones may be all of one length: as a batch it says that its field is ragged.
            found["audio"] = (found["audio"][0], np.array([0, found["audio"].shape[1]]))
        if self._classes:
            found["label"] = np.array([self._classes.index(os.path.basename(os.path.dirname(file)))])
        return {**found, "key": [os.path.relpath(file, self.path)]} if self.with_key else found
