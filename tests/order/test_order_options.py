import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsload.order import BlockShuffle, DatasetFacts, OrderOptions, resolve

MIB = 1 << 20


def facts(samples, sample_bytes):
    return DatasetFacts(samples, sample_bytes, int(samples * sample_bytes))


LARGE_SMALL_SAMPLES = facts(10_000_000, 3072)


@pytest.mark.parametrize(
    ("shuffle", "dataset", "name", "reason"),
    [
        (False, LARGE_SMALL_SAMPLES, "sequential", "shuffle=False"),
        ("full", LARGE_SMALL_SAMPLES, "full", 'shuffle="full"'),
        ("block", LARGE_SMALL_SAMPLES, "block", 'shuffle="block"'),
        (True, facts(1_000_000, 150_528), "full", "147 KiB, at least 64 KiB"),
        (True, facts(20_000, 65_536), "full", "64 KiB"),
        (True, facts(50_000, 3072), "full", "146.5 MiB, at most 1 GiB"),
        (True, facts(1 << 18, 4096), "full", "1 GiB, at most 1 GiB"),
        (True, facts((1 << 18) + 1, 4096), "block", "4 KiB, too small"),
        (True, LARGE_SMALL_SAMPLES, "block", "28.61 GiB, more than 1 GiB"),
        (True, facts(0, 0), "full", "0 B"),
    ],
)
def test_shuffle_is_chosen_from_the_dataset(shuffle, dataset, name, reason):
    options = resolve(shuffle, dataset)
    assert options.shuffle == name
    assert reason in options.reason


def test_defaults_of_a_large_dataset():
    options = resolve("block", LARGE_SMALL_SAMPLES)
    assert options.block == 4 * MIB // 3072 == 1365
    assert options.lanes == 8
    assert options.window == 16 * 1365


@given(st.integers(0, 10**9), st.floats(0, 2 * MIB))
def test_default_windows_are_16_blocks_or_a_whole_lane(samples, sample_bytes):
    options = resolve("block", facts(samples, sample_bytes))
    assert 1 <= options.lanes <= 8
    assert options.window == max(1, min(16 * options.block, -(-samples // options.lanes)))


@given(st.integers(0, 10**9), st.floats(0, 2**40))
def test_default_windows_leave_room_in_the_default_budget(samples, sample_bytes):
    options = resolve("block", facts(samples, sample_bytes))
    assert (options.lanes + 1) * options.window * sample_bytes <= 9 * 64 * MIB
    assert (options.lanes + 1) * options.window <= 9 * 65_536


@given(st.integers(0, 10**9), st.floats(0, 64 * MIB), st.integers(1, 100))
def test_default_windows_have_64_mib_at_most_however_many_lanes_there_are(samples, sample_bytes, lanes):
    assert resolve(BlockShuffle(lanes=lanes), facts(samples, sample_bytes)).window * sample_bytes <= 64 * MIB


def test_blocks_hold_4096_samples_at_most():
    assert resolve("block", facts(10**10, 1)).block == resolve("block", facts(10**10, 1024)).block == 4096
    assert resolve("block", facts(10**10, 1030)).block == 4 * MIB // 1030 == 4072


@pytest.mark.parametrize("sample_bytes", [2 * MIB + 1, 3 * MIB, 32 * MIB, 1 << 40])
def test_blocks_of_one_sample_are_a_full_shuffle(sample_bytes):
    options = resolve("block", facts(1000, sample_bytes))
    assert options == resolve("full", facts(1000, sample_bytes))
    assert "blocks of one sample are a full shuffle" in options.reason
    assert resolve("block", facts(1000, 2 * MIB)).block == 2
    assert resolve(BlockShuffle(block=1), facts(1000, sample_bytes)) == OrderOptions("block", 1, 16, 8)


def test_a_small_dataset_is_one_window_in_each_lane():
    options = resolve("block", facts(90_000, 3072))
    assert (options.lanes, options.window) == (8, 11_250)


def test_a_tiny_dataset_has_a_block_for_each_lane():
    assert resolve("block", facts(4000, 3072)).lanes == 2
    options = resolve("block", facts(3, 3072))
    assert (options.lanes, options.window) == (1, 3)
    empty = resolve("block", facts(0, 0))
    assert (empty.lanes, empty.window) == (1, 1)


def test_lanes_of_samples_larger_than_a_block():
    options = resolve(BlockShuffle(lanes=4), facts(1000, 30 * MIB))
    assert (options.block, options.window, options.lanes) == (1, 2, 4)


def test_arguments_are_taken_as_they_are():
    options = resolve(BlockShuffle(block=10, window=77, lanes=3), LARGE_SMALL_SAMPLES)
    assert (options.block, options.window, options.lanes) == (10, 77, 3)
    assert resolve(BlockShuffle(block=10), LARGE_SMALL_SAMPLES).window <= 160


@pytest.mark.parametrize("shuffle", [False, "full", "block"])
def test_state_survives_json(shuffle):
    options = resolve(shuffle, LARGE_SMALL_SAMPLES)
    state = json.loads(json.dumps(options.state()))
    assert set(state) == {"shuffle", "block", "window", "lanes"}
    assert OrderOptions(**state) == options
