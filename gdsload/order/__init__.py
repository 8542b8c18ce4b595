"""The order of samples: a pure function from positions to sample ids. No I/O, no state but a cursor."""

from gdsload.order.blocks import BlockOrder
from gdsload.order.hashing import Purpose, derive_key
from gdsload.order.lanes import LaneRun, Order, Schedule, Tail, lane_offset, lane_share
from gdsload.order.mixing import MixOrder, Mixture
from gdsload.order.order_options import BlockShuffle, OrderOptions, ShuffleName, resolve
from gdsload.order.orders import FullOrder, GivenOrder, SequentialOrder, make_order
from gdsload.order.permutation import Permutation

__all__ = [
    "BlockOrder",
    "BlockShuffle",
    "FullOrder",
    "GivenOrder",
    "LaneRun",
    "MixOrder",
    "Mixture",
    "Order",
    "OrderOptions",
    "Permutation",
    "Purpose",
    "Schedule",
    "SequentialOrder",
    "ShuffleName",
    "Tail",
    "derive_key",
    "lane_offset",
    "lane_share",
    "make_order",
    "resolve",
]
