"""Folders of sounds: `.wav`, `.flac`, `.mp3` and the like, maybe in a folder for each class."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, Unpack

import numpy as np

from gdsload.conversion.input_files import FileOptions, FileSource, open_file, stamps
from gdsload.conversion.reasons import reading
from gdsload.conversion.row_source import classes_of, run_parts
from gdsload.conversion.source import FieldChoice, Item, Part
from gdsload.conversion.sources.sounds import SOUNDS, sound_fields
from gdsload.errors import OptionError


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
    threads = True
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
        """The files as they were found first."""
        return self._files

    def metadata(self) -> dict[str, Any]:
        return {"classes": {"label": self._classes}} if self._classes else {}

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`: runs of files."""
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
