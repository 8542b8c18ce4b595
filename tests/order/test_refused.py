"""Refusals of orders and schedules: each call, and the argument that the error names."""

import pytest

from gdsload.errors import OptionError
from gdsload.order import BlockShuffle, Mixture, OrderOptions, Schedule, make_order
from gdsload.order import blocks as blocks_module
from gdsload.order.checks import MAX_SAMPLES
from gdsload.order.hashing import MASK64, derive_key
from tests.order.made import block_order as blocks

CALLS = [
    (lambda: make_order(OrderOptions("block", 1, 1, 1), [MAX_SAMPLES, 1], 0, 0), "number of samples is"),
    (lambda: Mixture((1, 2), (1,), 5), "weights has length 1, but there are 2 datasets"),
    (lambda: Mixture((1, 2), (1, -1), 5), "weights has -1"),
    (lambda: Mixture((1, 2), (1, float("nan")), 5), "weights has nan"),
    (lambda: Mixture((1, 2), (1, float("inf")), 5), "weights has inf"),
    (lambda: Mixture((1, 2), (0, 0), 5), "weights has nothing above 0"),
    (lambda: Mixture((1, 0), (1, 1), 5), "has no samples.*weight of 0"),
    (lambda: Mixture((1, 2), (1, 1), -1), "samples is -1"),
    (lambda: Mixture((1, 2), (1, 1), 1.5), "samples is 1.5"),
    (lambda: Schedule(-1, 2), "samples is -1"),
    (lambda: Schedule(MAX_SAMPLES + 1, 2), "samples is .* at most"),
    (lambda: Schedule(10, 2, rank=2, world_size=2), "ranks 0 to 1"),
    *((lambda step=step: Schedule(10, 2).runs(step), "steps 0 to 4") for step in (-1, 5)),
    *((lambda step=step: Schedule(10, 2).size(step), "steps 0 to 4") for step in (-1, 5)),
    *((lambda step=step: Schedule(10, 2).position(step), "5 steps") for step in (-1, 6)),
    *((lambda part=part: derive_key(1, part), r"not in \[0, 2\*\*64\).*Pass a seed") for part in (-1, MASK64 + 1)),
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
