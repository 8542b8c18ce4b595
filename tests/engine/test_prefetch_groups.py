"""How many batches the prefetcher's groups have, and which of them are made first."""

import time
from contextlib import closing

import pytest

from gdsload.engine import prefetch
from gdsload.engine.limits import Runner
from gdsload.engine.pace import LEAST
from tests.engine.noting import ALL, BATCH_BYTES, Noting, drain, over


def started(runner, **more):
    """The steps of each group of an epoch."""
    source = Noting()
    with closing(over(source, runner, **more)) as prefetcher:
        assert drain(prefetcher) == (ALL[more.get("start", 0) :], None)
    return source.started


ROOM_FOR_17 = {"prefetch_bytes": 17 * BATCH_BYTES, "group_bytes": 1 << 27}


@pytest.mark.parametrize(
    ("runner", "room", "first"),
    [
        (Runner(0), ROOM_FOR_17, [1, 2, 4, 8, 8]),
        (Runner(1), ROOM_FOR_17, [1, 2, 4, 8, 8]),
        (Runner(0, most_groups=1), {}, [64, 36]),
        (Runner(1, most_batches=1), {"group_bytes": 1 << 27}, [1] * 100),
        (Runner(1, most_batches=12), {"group_bytes": 1 << 27}, [1, 2, 4, 8, *[12] * 7, 1]),
        (Runner(1, most_batches=64), {"group_bytes": 1 << 27}, [1, 2, 4, 8, 16, 32, 37]),
    ],
    ids=["by the consumer", "by a thread", "one ahead", "1 at most", "12 at most", "64 at most"],
)
def test_they_begin_with_one_batch_and_grow_unless_all_are_large(runner, room, first):
    assert [len(steps) for steps in started(runner, **room)][: len(first)] == first


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize("least", [1, 3, 1000])
@pytest.mark.parametrize("start", [0, 1, 98, 100])
def test_groups_become_smaller_towards_the_end(monkeypatch, threads, least, start):
    """Half of what is left, down to so many batches: nothing is loaded while the last group is used."""
    monkeypatch.setattr(prefetch, "_LAST_BYTES", least * BATCH_BYTES)
    groups = started(Runner(threads, tapers=True), start=start)
    left = [100 - steps.start for steps in groups]
    wanted = [min(2**number, max(-(-some // 2), least), some, 64) for number, some in enumerate(left)]
    assert [len(steps) for steps in groups] == wanted


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("most", [1, 4])
def test_batches_ahead_are_bounded_in_number_too(threads, most):
    """However many bytes there are for them: a consumer that leaves early has them made for nothing."""
    source, handed = Noting(), 0
    with closing(over(source, Runner(threads, most_batches=most), prefetch_bytes=1 << 40)) as prefetcher:
        while (ready := prefetcher.get()) is not None:
            handed += len(ready.batches)
            time.sleep(0.01 * (handed < 30))
            assert sum(map(len, source.started)) - handed <= LEAST * most
    assert handed == 100


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("batches", [2, 5])
@pytest.mark.parametrize("landed", [False, True])
def test_encoded_images_are_read_further_ahead_than_batches_are_made(threads, batches, landed):
    """Their bytes have the budget by themselves, whether some have landed: or the drive is idle, then the decoder."""
    source, handed, furthest = Noting(), 0, 0
    source.landed = lambda _steps: landed
    budgets = {"prefetch_bytes": batches * BATCH_BYTES, "group_bytes": BATCH_BYTES, "read_bytes": BATCH_BYTES // 20}
    with closing(over(source, Runner(threads), **budgets)) as prefetcher:
        while (ready := prefetcher.get()) is not None:
            handed += len(ready.batches)
            time.sleep(0.01 * (handed < 30))
            made, started = sum(map(len, source.made)), sum(map(len, source.started))
            assert made - handed <= batches
            assert started - made <= (24 if landed else 20 * batches) + threads
            furthest = max(furthest, started - handed)
    assert handed == 100
    assert furthest >= 24


def test_fewer_are_ahead_where_each_takes_long_to_make():
    source = Noting()
    with closing(over(source, Runner(2), prefetch_bytes=1 << 40, one_by_one=True)) as prefetcher:
        for handed in range(1, 4):
            assert len(prefetcher.get().batches) == 1
            time.sleep(0.02)
            assert 2 <= len(source.started) - handed <= 16
        drain(prefetcher)
    assert {len(steps) for steps in source.started} == {1}


@pytest.mark.parametrize("start", [0, 57])
@pytest.mark.parametrize(
    ("threads", "landing", "counts"),
    [
        (1, "none", [LEAST]),
        (1, "first", [2, 1 + LEAST]),
        (1, "each", [2, 1 + LEAST]),
        (0, "none", [2]),
        (0, "at once", [2]),
    ],
)
def test_a_first_group_that_is_there_is_made_before_further_ones_are_started(start, threads, landing, counts):
    """Nothing else would come to the consumer meanwhile; what comes after it may wait for its reads.

    Groups land once another is under way: if all have, no more are started anyway. A consumer that runs the prefetcher
    itself starts the second one in any case.
    """
    source, found = Noting(), []

    def landed(steps):
        if landing == "at once":
            return True
        return (landing == "each" or (landing == "first" and steps.start == start)) and source.started[-1] != steps

    source.landed = landed
    source.finishing = lambda _steps: found.append(len(source.started))
    with closing(over(source, Runner(threads), start=start)) as prefetcher:
        assert drain(prefetcher) == (ALL[start:], None)
    assert found[: len(counts)] == counts


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("fails", [False, True])
def test_what_later_groups_need_is_prepared_once_a_first_group_is_made(threads, fails):
    """Also after one that could not be made. Each thread asks for it after its own first group."""
    source, made = Noting(), []
    if fails:
        source.lost[0] = OSError("no")
    runner = Runner(threads, prepare=lambda: made.append(len(source.made)))
    with closing(over(source, runner)) as prefetcher:
        drain(prefetcher)
    assert 1 <= len(made) <= threads
    assert fails or min(made) >= 1


@pytest.mark.parametrize("threads", [1, 3])
def test_an_epoch_does_not_end_because_nothing_can_be_prepared(threads):
    with closing(over(Noting(), Runner(threads, prepare=lambda: 1 / 0))) as prefetcher:
        assert drain(prefetcher) == (ALL, None)


@pytest.mark.parametrize("lands", [False, True])
def test_groups_whose_bytes_land_in_the_arena_are_larger(lands):
    """From when some have been seen there, which is not before there are two groups; then they double as any do."""
    source, asked = Noting(), []

    def in_arena(steps):
        asked.append(steps)
        return lands and len(asked) % 3 and len(steps) * BATCH_BYTES  # not all open a window of an order

    source.in_arena, source.landed = in_arena, lambda _steps: True
    with closing(over(source, Runner(0), group_bytes=2 * BATCH_BYTES, landing_bytes=8 * BATCH_BYTES)) as prefetcher:
        drain(prefetcher)
    counts = [len(steps) for steps in source.started]
    assert counts[:7] == ([1, 2, 2, 4, 8, 8, 8] if lands else [1, *[2] * 6])
