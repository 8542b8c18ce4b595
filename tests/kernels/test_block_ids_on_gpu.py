"""The GPU's block order is the host's, bit for bit."""

import numpy as np
import pytest
import torch

from gdsload.engine.steps import Ordered
from gdsload.kernels.block_ids import BlockIds
from gdsload.order import BlockOrder, Schedule

pytestmark = pytest.mark.cuda


def compare(device, order, schedule, random, groups=4):
    """Groups of steps, mostly one after the other, then the last steps, and the first ones again."""
    ids, host = BlockIds(device, order, schedule), Ordered(order, schedule)
    steps, step = schedule.steps, 0
    for _ in range(groups):
        group = range(step, min(step + int(random.integers(1, 65)), steps))
        assert np.array_equal(ids(group).cpu().numpy(), host.positions(group)), (order, schedule, group)
        step = group.stop if group.stop < steps and random.random() < 0.8 else int(random.integers(steps))
    for group in (range(max(steps - 3, 0), steps), range(min(steps, 2))):
        assert np.array_equal(ids(group).cpu().numpy(), host.positions(group)), (order, schedule, group)


def drawn(random, runs):
    """An order of runs of samples, and a schedule."""
    samples = sum(runs)
    lanes = int(random.choice([1, 2, 3, 8, random.integers(1, 71)]))
    even = max(-(-samples // lanes) + int(random.integers(-1, 2)), 1)
    order = BlockOrder(
        runs,
        block=int(random.choice([1, random.integers(1, 40), random.integers(1, samples + 1)])),
        window=int(random.choice([1, random.integers(1, 30), random.integers(1, 2000), even, 2 * samples])),
        lanes=lanes,
        key=int(random.integers(2**64, dtype=np.uint64)),
    )
    world_size = int(random.choice([1, 1, 2, 8, random.integers(1, 31)]))
    batch_size = int(random.choice([1, random.integers(1, 64), random.integers(1, 600), 2 * samples]))
    return order, Schedule(
        samples, batch_size, int(random.integers(world_size)), world_size, str(random.choice(["share", "drop"])), lanes
    )


@pytest.mark.parametrize("seed", range(8))
def test_any_order_and_schedule(device, seed):
    """Blocks of one sample and larger than all shards, empty shards, windows of one sample, batches of many windows."""
    random = np.random.default_rng(seed)
    compared = 0
    for _ in range(40):
        runs = random.integers(1, 3000, int(random.integers(1, 12))) * (random.random() < 0.8)
        order, schedule = drawn(random, [*runs.tolist(), 1 + int(random.integers(40))])
        if schedule.steps and BlockIds.possible(order, schedule):
            compare(device, order, schedule, random)
            compared += 1
    assert compared > 15


@pytest.mark.parametrize("window", [1000, 65_535, 65_536, 65_537, 66_049, 131_072, 10**6])
@pytest.mark.parametrize(("lanes", "world_size"), [(1, 1), (8, 1), (3, 2), (8, 8)])
def test_windows_on_both_sides_of_the_limit(device, window, lanes, world_size):
    """Of one order the first and last windows may be small, and all others large."""
    random = np.random.default_rng(window)
    order = BlockOrder([700_000, 0, 123_457], block=1365, window=window, lanes=lanes, key=int(random.integers(2**63)))
    for rank in {0, world_size - 1}:
        schedule = Schedule(order.samples, 2000, rank, world_size, lanes=lanes)
        compare(device, order, schedule, random, groups=8)


def test_groups_on_streams_that_are_behind(device):
    """Nobody waits between them: tables are made, used by several streams, and dropped while they are still needed."""
    order = BlockOrder([300_000], block=100, window=7000, lanes=8, key=5)
    schedule = Schedule(order.samples, 500, lanes=8)
    host = Ordered(order, schedule)
    for _ in range(3):
        ids, streams, found = BlockIds(device, order, schedule), [torch.cuda.Stream() for _ in range(3)], []
        for number, step in enumerate(range(0, schedule.steps, 20)):
            stream = streams[number % 3 if number % 5 else 0]
            with torch.cuda.stream(stream):
                torch.cuda._sleep(3_000_000)
                found.append(ids(range(step, min(step + 20, schedule.steps))))
        del ids
        torch.cuda.synchronize()
        assert np.array_equal(torch.cat(found).cpu().numpy(), host.positions(range(schedule.steps)))


def test_memory_comes_back(device):
    order = BlockOrder([1_000_000], block=100, window=60_000, lanes=8, key=5)
    schedule = Schedule(order.samples, 500, lanes=8)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    ids = BlockIds(device, order, schedule)
    most = 0
    for step in range(0, schedule.steps, 20):
        ids(range(step, min(step + 20, schedule.steps)))
        torch.cuda.synchronize()
        most = max(most, torch.cuda.memory_allocated() - before)
    # A window of each lane, and the next one; those made together go together.
    assert most < 4 * 8 * 60_000 * 8
    del ids
    torch.cuda.synchronize()
    torch.empty(1, device=device)  # the allocator looks now at what was being used by other streams
    assert torch.cuda.memory_allocated() <= before + 1024
