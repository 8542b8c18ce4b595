"""`verify=` on a GPU: the batches of the CPU, and damage that is named, whatever way the bytes travel."""

import time

import pytest

from gdsload import BlockShuffle, Gds, ShardDataset
from tests.loader.taking import prints
from tests.loader.test_verify import check_bit, header, load, taken, write, write_damaged
from tests.on_gpu import wait_until_kept
from tests.shards.bits import flip

pytestmark = pytest.mark.cuda
BLOCKS = BlockShuffle(block=16, window=32, lanes=2)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    pytest.importorskip("cupy")
    return write(tmp_path_factory.mktemp("written") / "shards")


@pytest.fixture(params=["gds", "bounce", "mapped", "host", "auto"])
def way(request):
    """The options of a way that bytes travel."""
    if request.param == "gds":
        request.getfixturevalue("cufile")
    return {"backend": Gds(compat=True) if request.param == "gds" else request.param, "device": "cuda"}


@pytest.mark.parametrize("shuffle", [False, BLOCKS])
@pytest.mark.parametrize("fields", [["x"], ["x", "points", "text", "label"]])
@pytest.mark.parametrize("verify", ["all", "sample"])
def test_batches_are_those_of_the_cpu(written, way, shuffle, fields, verify):
    plain = prints(load(written, verify="off", shuffle=shuffle, fields=fields))
    with load(written, verify=verify, shuffle=shuffle, fields=fields, **way) as loader:
        assert prints(loader) == plain


@pytest.mark.parametrize("shuffle", [False, BLOCKS])
def test_a_sample_of_the_blocks_is_that_of_the_cpu(tmp_path, way, shuffle):
    """All blocks are damaged."""
    path, found = write_damaged(tmp_path / "shards"), []
    for seed in range(8):
        options = {"verify": "sample", "seed": seed, "shuffle": shuffle}
        batches, errors = taken(load(path, **options))
        found += errors
        with load(path, **options, **way) as loader:
            there, same = taken(loader)
        assert prints(there) == prints(batches)
        assert [error.problems for error in same] == [error.problems for error in errors]
    assert found


@pytest.mark.parametrize("shuffle", [False, BLOCKS])
@pytest.mark.parametrize("name", ["x", "points", "text", "label"])
def test_a_bit_that_turns_over_is_named(written, way, shuffle, name):
    path = ShardDataset(written).sources[1].path
    entry = header(path).header.tensors[name]
    fields = ["x", "points", "text", "label"]
    check_bit(written, path, name, (entry.begin + entry.end) // 2, way, shuffle=shuffle, fields=fields)


@pytest.mark.parametrize("verify", ["all", "sample"])
@pytest.mark.parametrize("shuffle", [False, BLOCKS])
def test_texts_in_vram_are_compared_there(written, shuffle, verify):
    """The CPU makes texts, and has no access to that memory."""
    given = {"shuffle": shuffle, "seed": 3, "fields": ["x", "text"]}
    with load(written, verify="off", **given) as plain:
        expected = [prints(plain) for _ in range(3)]
    with load(written, device="cuda", cache="vram", verify=verify, **given) as loader:
        assert prints(loader) == expected[0]
        wait_until_kept(loader)
        assert [prints(loader) for _ in range(2)] == expected[1:]


@pytest.mark.parametrize("damaged", [False, True])
def test_shards_that_are_kept_in_vram_are_compared_there_once(tmp_path, damaged):
    """If one is damaged there, batches are read, and the damage is found, in every epoch."""
    pytest.importorskip("cupy")
    path = write(tmp_path / "shards")
    if damaged:
        source = ShardDataset(path).sources[0].path
        flip(source, header(source).header.tensors["x"].begin)
    with load(path, device="cuda", cache="vram", fields=["x"]) as loader:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            _, errors = taken(loader)
            assert bool(errors) == damaged
            in_vram = "from its own memory" in loader.backend.batches
            if in_vram or (damaged and loader.cache.tiers["vram"].shards == loader.cache.shards):
                break
        assert in_vram != damaged
