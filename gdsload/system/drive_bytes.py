"""The number of bytes that the kernel read from drives for a process."""

from __future__ import annotations

import re
from contextlib import suppress


def bytes_from_drives(process: str = "self") -> int | None:
    """Bytes read from drives for all threads of a process, with or without the page cache; None if unknown.

    Bytes that the kernel read ahead for it are among them, those of other processes are not.
    """
    with suppress(OSError), open(f"/proc/{process}/io", encoding="ascii") as file:
        found = re.search(r"^read_bytes: (\d+)$", file.read(), re.MULTILINE)
        return None if found is None else int(found[1])
    return None
