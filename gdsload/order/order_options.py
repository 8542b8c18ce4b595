"""Order options: fixed by the dataset and the arguments, so that they can be saved and resumed.

World size, memory budgets and measured speed never enter here. The reasons for the defaults are in
docs/design/0001-order.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from gdsload.errors import OptionError
from gdsload.order.checks import MAX_SAMPLES, check_whole
from gdsload.system.units import format_bytes

ShuffleName = Literal["sequential", "full", "block", "sampler", "function"]

BLOCK_BYTES: Final = 4 << 20
"""Default size of a block: reads of 4 MiB run at the disk's bandwidth with few of them in flight."""

BLOCK_SAMPLES: Final = 4096
"""Most samples of a block by default: an open window takes 16 bytes for each sample, and 8 for each of its fields."""

WINDOW_BLOCKS: Final = 16
"""Default size of a window, in blocks."""

LANES: Final = 8
"""Default number of lanes of a dataset that has a block for each."""

FULL_SAMPLE_BYTES: Final = 64 << 10
"""Mean sample size from which shuffle=True is a full shuffle: random reads run at the disk's bandwidth."""

FULL_TOTAL_BYTES: Final = 1 << 30
"""Dataset size up to which shuffle=True is a full shuffle: after one read it is in the page cache."""

_SHUFFLE_REMEDY: Final = 'Pass `shuffle="full"`, "block", True, False or a `gdsload.BlockShuffle(block=4096)`.'


@dataclass(frozen=True, slots=True)
class BlockShuffle:
    """The block shuffle, for `shuffle=`: blocks of neighbouring samples are permuted, then samples within windows.

    Attributes:
        block: samples of a block, the unit of reads. None: as many as fill 4 MiB, at most 4096.
        window: samples that are shuffled together, which are in memory at once. None: 16 blocks, or fewer, so that all
            windows are equally long, and that no window has more than 64 MiB where `block` is None, too.
        lanes: sequences of blocks that the ranks share out. None: 8, or as many as the dataset has blocks.

    Raises:
        OptionError: if one is no whole number of at least 1.
    """

    block: int | None = None
    window: int | None = None
    lanes: int | None = None

    def __post_init__(self) -> None:
        for name in ("block", "window", "lanes"):
            if (value := getattr(self, name)) is not None:
                check_whole(value, name, 1, MAX_SAMPLES)


@dataclass(frozen=True, slots=True)
class OrderOptions:
    """The options of an order, with every default filled in.

    Attributes:
        shuffle: name of the order; "sampler" or "function" where a sampler gives it.
        block: samples of a block, the unit of streaming reads; 0 unless `shuffle` is "block".
        window: samples shuffled together; 0 unless `shuffle` is "block".
        lanes: number of lanes; 1 unless `shuffle` is "block".
        reason: the reason for this order, in words; no part of the state, nor of equality.
    """

    shuffle: ShuffleName
    block: int
    window: int
    lanes: int
    reason: str = field(default="", compare=False)

    def state(self) -> dict[str, str | int]:
        """Return the options as a JSON-able dict, as a loader's state holds them."""
        return {"shuffle": self.shuffle, "block": self.block, "window": self.window, "lanes": self.lanes}


def resolve(
    shuffle: bool | str | BlockShuffle, samples: int, mean_sample_bytes: float, total_bytes: int
) -> OrderOptions:
    """Fill in the defaults, from the dataset and the arguments alone: samples, bytes of an average one, and of all.

    `shuffle` is False for dataset order, "full" or "block" for that shuffle. True chooses: full where samples average
    64 KiB or more, or the dataset is at most 1 GiB; else block. Blocks of one sample, which samples of more than 2 MiB
    have by default, are permuted one by one: that is a full shuffle, and "block" is "full" then, unless a
    `BlockShuffle` gives one. Raises OptionError if `shuffle` is anything else.
    """
    name, reason = _choose(shuffle, mean_sample_bytes, total_bytes)
    if name != "block":
        return OrderOptions(name, 0, 0, 1, reason)
    if shuffle == "block" and samples and not total_bytes:
        # A header of 100 bytes may promise so many of them that their blocks would take seconds to permute.
        return OrderOptions("full", 0, 0, 1, f"{reason}, and samples without bytes are in no blocks")
    wanted = shuffle if isinstance(shuffle, BlockShuffle) else BlockShuffle()
    block, window, lanes = wanted.block, wanted.window, wanted.lanes
    mean = max(mean_sample_bytes, 1.0)
    longest = MAX_SAMPLES
    if block is None:
        block = max(1, min(int(BLOCK_BYTES / mean), BLOCK_SAMPLES))
        longest = max(1, int(WINDOW_BLOCKS * BLOCK_BYTES / mean))
        if block == 1 and window is None and lanes is None:
            reason += f" and samples average {format_bytes(mean)}: blocks of one sample are a full shuffle"
            return OrderOptions("full", 0, 0, 1, reason)
    if lanes is None:
        # At least a block for each lane, or reads would get shorter than they need to be.
        lanes = max(1, min(LANES, samples // block))
    if window is None:
        window = max(1, min(WINDOW_BLOCKS * block, longest, -(-samples // lanes)))
    # As plain ints: they go into the state, and numpy's cannot be written as JSON.
    return OrderOptions("block", int(block), int(window), int(lanes), reason)


def _choose(shuffle: bool | str | BlockShuffle, mean_sample_bytes: float, total_bytes: int) -> tuple[ShuffleName, str]:
    if shuffle is False:
        return "sequential", "shuffle=False"
    if shuffle == "full":
        return "full", 'shuffle="full"'
    if shuffle == "block":
        return "block", 'shuffle="block"'
    if isinstance(shuffle, BlockShuffle):
        return "block", f"shuffle={shuffle}"
    if shuffle is not True:
        raise OptionError(f"is {shuffle!r}, which is no way to shuffle", option="shuffle", remedy=_SHUFFLE_REMEDY)
    mean = f"samples average {format_bytes(mean_sample_bytes)}"
    total = f"the dataset has {format_bytes(total_bytes)}"
    if mean_sample_bytes >= FULL_SAMPLE_BYTES:
        limit = format_bytes(FULL_SAMPLE_BYTES)
        return "full", f"shuffle=True and {mean}, at least {limit}: random reads run at the disk's bandwidth"
    limit = format_bytes(FULL_TOTAL_BYTES)
    if total_bytes <= FULL_TOTAL_BYTES:
        return "full", f"shuffle=True and {total}, at most {limit}: it is read once, then any order is fast"
    return "block", f"shuffle=True, {mean}, too small for random reads, and {total}, more than {limit}"
