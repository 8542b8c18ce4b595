"""Room on the disk: how much a conversion still needs, and whether it is there."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gdsload.conversion.staging import PartReport
from gdsload.errors import DiskFullError
from gdsload.shards.publish import write_error
from gdsload.system.units import format_bytes


@dataclass(frozen=True, slots=True)
class Room:
    """The space on a disk that the unfinished tasks will need.

    Attributes:
        path: where the dataset will appear.
        sizes: about how many bytes each task will write, or -1.
        done: those that are finished.
        twice: whether all samples are written again, in another order, when all parts are there.
        spread_over: the folders that the shards are spread over; none: they are where the dataset is.
    """

    path: str
    sizes: Sequence[int]
    done: Mapping[int, PartReport]
    twice: bool
    spread_over: Sequence[str] = ()

    @property
    def _folders(self) -> Sequence[str]:
        return self.spread_over or [os.path.dirname(self.path)]

    def check(self) -> None:
        """Raise a `DiskFullError` if there is no room for all unfinished parts, before the first one."""
        if len(self.done) == len(self.sizes):
            return
        left = sum(max(size, 0) for number, size in enumerate(self.sizes) if number not in self.done)
        self._check(left + (sum(max(size, 0) for size in self.sizes) if self.twice else 0))

    def check_again(self) -> None:
        """Raise a `DiskFullError` if there is no room for all samples once more, now that their size is known."""
        self._check(sum(report.nbytes for report in self.done.values()))

    def _check(self, needed: int) -> None:
        found = {folder: _room_in(folder) for folder in self._folders}
        folders_of = Counter(device for device, _, _ in found.values())
        for folder, (device, free, total) in found.items():
            share = needed * folders_of[device] // len(self._folders)
            if share > free and total:  # some file systems do not say how large they are
                raise DiskFullError("there is no room for the dataset", file=folder)

    def explain(self, error: DiskFullError) -> DiskFullError:
        """The error of a full disk, with what is needed, and what is free."""
        free = [format_bytes(_room_in(folder)[1]) for folder in self._folders]
        several = f" in {', '.join(self._folders)}" if len(free) > 1 else ""
        needed = self._still_needed()
        amount = "more" if needed is None else f"about {format_bytes(needed)}"
        return DiskFullError(
            f"{error.message}: {amount} is still to be written, and {', '.join(free)} are free{several}",
            file=error.file if self.spread_over and error.file is not None else self.path,
            remedy=f"Free some space and run it again: it goes on after the {len(self.done)} of {len(self.sizes)} "
            "parts that are finished. Or write elsewhere.",
        )

    def _still_needed(self) -> int | None:
        """Bytes still to be written; where a part does not say, it is taken for as large as those that are done."""
        written = sum(report.nbytes for report in self.done.values())
        mean = written // len(self.done) if self.done else -1
        left = [size if size >= 0 else mean for number, size in enumerate(self.sizes) if number not in self.done]
        if -1 in left:
            return None
        return sum(left) + (written + sum(left) if self.twice else 0)


def _room_in(folder: str) -> tuple[int, int, int]:
    """The device of a folder, how many bytes of it are free, and how many there are; a `WriteError` if it is gone."""
    try:
        usage = shutil.disk_usage(folder)
        return os.stat(folder).st_dev, usage.free, usage.total
    except OSError as error:
        raise write_error("shards cannot be written there any more", error, folder) from error
