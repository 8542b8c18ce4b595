"""Tables with a log that says which rows of which files count: Delta, Iceberg and Hudi."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import PurePosixPath

from gdsload.errors import FormatError
from gdsload.system.paths import absolute, natural

_ICEBERG = "metadata"
_STATES = (".metadata.json", ".metadata.json.gz")
_STATE = re.compile(r"v\d+\.|\d+-", re.ASCII)


def _delta(table: str) -> str:
    return f"import deltalake; gdsload.convert(deltalake.DeltaTable({table!r}).to_pyarrow_table(), 'shards/')"


def _hudi(table: str) -> str:
    rows = f"hudi.HudiTableBuilder.from_base_uri({table!r}).build().read()"
    return f"import hudi, pyarrow; gdsload.convert(pyarrow.Table.from_batches({rows}), 'shards/')"


def _iceberg(state: str) -> str:
    rows = f"StaticTable.from_metadata({state!r}).scan().to_arrow()"
    return f"from pyiceberg.table import StaticTable; gdsload.convert({rows}, 'shards/')"


def refuse_logged(folder: str) -> None:
    """Refuse a folder that is such a table: its files hold removed rows, too, and some rows twice.

    Raises:
        FormatError: with the line that converts the table.
    """
    kinds: tuple[tuple[str, str, Callable[[str], str]], ...] = (
        ("a Delta", "_delta_log", _delta), ("a Hudi", ".hoodie", _hudi),
    )  # fmt: skip
    for kind, mark, remedy in kinds:
        if os.path.lexists(os.path.join(folder, mark)):
            raise _logged(kind, folder, mark, remedy(absolute(folder)))
    states = []
    with suppress(OSError):  # in most folders there is none
        states = [name for name in os.listdir(os.path.join(folder, _ICEBERG)) if name.endswith(_STATES)]
    if any(map(_STATE.match, states)) or (states and os.path.isdir(os.path.join(folder, "data"))):
        newest = os.path.join(absolute(folder), _ICEBERG, max(states, key=natural))
        raise _logged("an Iceberg", folder, _ICEBERG, _iceberg(newest))


def refuse_logged_above(path: str) -> None:
    """Refuse a path at such a table or in one: the log is beside its files, or above their folders.

    Raises:
        FormatError: see `refuse_logged`.
    """
    for folder in dict.fromkeys([absolute(path), os.path.realpath(path)]):
        for above in (folder, *PurePosixPath(folder).parents):
            refuse_logged(str(above))


def _logged(kind: str, folder: str, mark: str, remedy: str) -> FormatError:
    return FormatError(
        f"it is {kind} table: `{mark}` says which rows of its files count, and these are not all",
        file=folder,
        remedy=f"Read it by its own library: {remedy}",
    )
