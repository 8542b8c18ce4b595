"""What orders and schedules refuse: each call, and the argument that the error names."""

import itertools

import pytest

from gdsload.errors import OptionError
from gdsload.order import (
    BlockShuffle,
    FullOrder,
    LaneRun,
    MixOrder,
    Mixture,
    OrderOptions,
    Permutation,
    Schedule,
    SequentialOrder,
    make_order,
)
from gdsload.order import blocks as blocks_module
from gdsload.order.checks import MAX_SAMPLES
from gdsload.order.hashing import MASK64, derive_key
from tests.order.made import block_order as blocks


def mixed():
    return MixOrder(Mixture((5, 6), (1, 1), 20), shuffled=True, seed=0, epoch=0)


ORDERS = (SequentialOrder(20), FullOrder(20, 1), blocks([20], 4, 8, 2), mixed())

CALLS = [
    (lambda: blocks(block=0), "block is 0"),
    (lambda: blocks(window=0), "window is 0"),
    (lambda: blocks(lanes=0), "lanes is 0"),
    (lambda: blocks(key=-1), "key is -1"),
    (lambda: blocks([3, -1]), "run_lengths"),
    (lambda: blocks([1.5]), "run_lengths"),
    (lambda: blocks([2**70]), "run_lengths"),
    (lambda: blocks([MAX_SAMPLES, 1]), "number of samples is"),
    (lambda: blocks([100], 10, 20, 1).sorted_ids(0, [LaneRun(0, 10, 30)]), r"\[10, 30\) are not within the 20 of"),
    (lambda: blocks([100], 10, 20, 1).runs_between(0, 80, 101), "lane 0"),
    *(
        (lambda order=order, places=places: order.lane_ids(0, *places), "positions .* are not within the")
        for order, places in itertools.product(ORDERS, ((-1, 2), (3, 2), (0, 21)))
    ),
    *(
        (lambda order=order, number=number: order.lane_ids(number, 0, 1), "lane is")
        for order in ORDERS
        for number in (-1, order.lanes)
    ),
    (lambda: Mixture((1, 2), (1,), 5), "weights has length 1, but there are 2 datasets"),
    (lambda: Mixture((1, 2), (1, -1), 5), "weights has -1"),
    (lambda: Mixture((1, 2), (1, float("nan")), 5), "weights has nan"),
    (lambda: Mixture((1, 2), (1, float("inf")), 5), "weights has inf"),
    (lambda: Mixture((1, 2), (0, 0), 5), "weights has nothing above 0"),
    (lambda: Mixture((1, 0), (1, 1), 5), "has no samples.*weight of 0"),
    (lambda: Mixture((1, 2), (1, 1), -1), "samples is -1"),
    (lambda: Mixture((1, 2), (1, 1), 1.5), "samples is 1.5"),
    (lambda: Permutation(-1, 0), "must be at"),
    (lambda: Permutation(MAX_SAMPLES + 1, 0), "must be at"),
    (lambda: Permutation(10, 0)(-1, 3), "the permutation"),
    (lambda: Permutation(10, 0)(3, 2), "the permutation"),
    (lambda: Permutation(10, 0)(0, 11), "the permutation"),
    (lambda: Schedule(-1, 2), "samples is -1"),
    (lambda: Schedule(MAX_SAMPLES + 1, 2), "samples is .* at most"),
    (lambda: Schedule(10, 0), "batch_size is 0"),
    (lambda: Schedule(10, 2.5), "batch_size is 2.5, which is no whole number"),
    (lambda: Schedule(10, 2, world_size=0), "world_size is 0"),
    (lambda: Schedule(10, 2, tail="cut"), 'tail is .cut.*"share", "pad" and "drop"'),
    (lambda: Schedule(10, 2, lanes=0), "lanes is 0"),
    (lambda: Schedule(10, 2, rank=-1), "rank is -1"),
    (lambda: Schedule(10, 2, rank=2, world_size=2), "ranks 0 to 1"),
    (lambda: Schedule(10, 4, lanes=2).pieces(range(1, 4)), "step is 3, but the epoch has steps 0 to 2"),
    *((lambda step=step: Schedule(10, 2).runs(step), "steps 0 to 4") for step in (-1, 5)),
    *((lambda step=step: Schedule(10, 2).size(step), "steps 0 to 4") for step in (-1, 5)),
    *((lambda step=step: Schedule(10, 2).position(step), "5 steps") for step in (-1, 6)),
    *((lambda part=part: derive_key(1, part), r"not in \[0, 2\*\*64\).*Pass a seed") for part in (-1, MASK64 + 1)),
    *(
        (lambda name=name, given=given: make_order(OrderOptions(name, 0, 0, 1), [10], *given), message)
        for name in ("full", "sequential")
        for given, message in (((-1, 0), "seed is"), ((2**64, 0), "seed is"), ((0, -1), "epoch is"))
    ),
    *(
        (lambda name=name, odd=odd: BlockShuffle(**{name: odd}), f"{name} is")
        for name, odd in (("block", 1.5), ("block", "8"), ("block", -1), ("window", 0), ("lanes", 0))
    ),
]


@pytest.mark.parametrize(("call", "message"), CALLS, ids=lambda one: one if isinstance(one, str) else "")
def test_calls(call, message):
    with pytest.raises(OptionError, match=message):
        call()


def test_more_blocks_than_fit_in_memory(monkeypatch):
    monkeypatch.setattr(blocks_module, "MAX_BLOCKS", 10)
    with pytest.raises(OptionError, match="block is 100, which makes 11 blocks.*larger `block`"):
        blocks().lane_ids(0, 0, 1)
