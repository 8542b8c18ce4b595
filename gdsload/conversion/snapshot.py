"""The state of a source's files, so that a result is of one state of them and not of two."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

from gdsload.conversion.source import Source, path_of
from gdsload.errors import FileChangedError, OptionError


class SourceSnapshot:
    """A source as it is now."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.description = self._describe()

    def _describe(self) -> Any:
        return json.loads(json.dumps(self._source.describe()))

    def check(self) -> None:
        """Raise a `FileChangedError` if the source has changed."""
        file = path_of(self._source)
        try:
            same = self._describe() == self.description
        except FileNotFoundError as error:
            file, same = str(error.filename), False
        if not same:
            raise FileChangedError(
                "the source has changed since its conversion began: the result would be of two states of it",
                file=file,
                remedy="Run it again when nothing changes the source any more, with `restart=True`: the "
                "parts that are finished may be of the old state.",
            )


def refuse_inside(source: Source, out: str, targets: Iterable[str]) -> None:
    """Refuse to write into the folder of a source: the next conversion would take the shards for a part of it.

    The folder itself is allowed as `out`: a dataset may take the place of its source. Shards get a folder in each of
    the `targets`.

    Raises:
        OptionError: if one is below the folder of the source.
    """
    path = path_of(source)
    if path is None or not os.path.isdir(path):
        return
    folder = os.path.realpath(path)
    for place in (out, *(os.path.join(target, "shards") for target in targets)):
        if os.path.realpath(place).startswith(os.path.join(folder, "")):
            raise OptionError(
                f"it is in the folder of the source, {path}: the next conversion of that would take the shards for "
                "samples, or for a class of their own",
                file=place,
                remedy="Write to a folder beside that of the source.",
            )
