import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gdsload.order import BlockShuffle, OrderOptions, resolve

MIB = 1 << 20


def facts(samples, sample_bytes):
    return samples, sample_bytes, int(samples * sample_bytes)


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
    options = resolve(shuffle, *dataset)
    assert options.shuffle == name
    assert reason in options.reason


@pytest.mark.parametrize(
    ("shuffle", "samples", "sample_bytes", "block", "window", "lanes"),
    [
        ("block", 10_000_000, 3072, 4 * MIB // 3072, 16 * 1365, 8),
        ("block", 90_000, 3072, 1365, 11_250, 8),  # one window in each lane
        ("block", 4000, 3072, 1365, 2000, 2),  # a block for each lane
        ("block", 3, 3072, 1365, 3, 1),
        ("block", 0, 0, 4096, 1, 1),
        ("block", 10**10, 1, 4096, 65_536, 8),
        ("block", 10**10, 1030, 4072, 65_152, 8),
        (BlockShuffle(lanes=4), 1000, 30 * MIB, 1, 2, 4),  # samples larger than a block
        (BlockShuffle(block=10, window=77, lanes=3), 10_000_000, 3072, 10, 77, 3),
        (BlockShuffle(block=10), 10_000_000, 3072, 10, 160, 8),
    ],
)
def test_sizes_of_a_block_shuffle(shuffle, samples, sample_bytes, block, window, lanes):
    options = resolve(shuffle, *facts(samples, sample_bytes))
    assert (options.block, options.window, options.lanes) == (block, window, lanes)


@given(st.integers(0, 10**9), st.floats(0, 2 * MIB))
def test_default_windows_are_16_blocks_or_a_whole_lane(samples, sample_bytes):
    dataset = facts(samples, sample_bytes)
    assume(not samples or dataset[2])  # those without bytes are in no blocks
    options = resolve("block", *dataset)
    assert 1 <= options.lanes <= 8
    assert options.window == max(1, min(16 * options.block, -(-samples // options.lanes)))
    assert options.window <= 65_536


@given(st.integers(0, 10**9), st.floats(0, 64 * MIB), st.integers(1, 100))
def test_default_windows_have_64_mib_at_most_however_many_lanes_there_are(samples, sample_bytes, lanes):
    assert resolve(BlockShuffle(lanes=lanes), *facts(samples, sample_bytes)).window * sample_bytes <= 64 * MIB


@pytest.mark.parametrize("sample_bytes", [2 * MIB + 1, 3 * MIB, 32 * MIB, 1 << 40])
def test_blocks_of_one_sample_are_a_full_shuffle(sample_bytes):
    options = resolve("block", *facts(1000, sample_bytes))
    assert options == resolve("full", *facts(1000, sample_bytes))
    assert "blocks of one sample are a full shuffle" in options.reason
    assert resolve("block", *facts(1000, 2 * MIB)).block == 2
    assert resolve(BlockShuffle(block=1), *facts(1000, sample_bytes)) == OrderOptions("block", 1, 16, 8)


def test_samples_without_bytes_are_in_no_blocks():
    assert [resolve(shuffle, *facts(10**11, 0)).shuffle for shuffle in ("block", True)] == ["full", "full"]


@pytest.mark.parametrize("shuffle", [False, "full", "block"])
def test_state_survives_json(shuffle):
    options = resolve(shuffle, *LARGE_SMALL_SAMPLES)
    state = json.loads(json.dumps(options.state()))
    assert set(state) == {"shuffle", "block", "window", "lanes"}
    assert OrderOptions(**state) == options
