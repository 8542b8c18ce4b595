"""A dataset over several drives gives on a GPU what it gives on the CPU, and reads of all drives are under way at once."""

import os
import threading

import numpy as np
import pytest
import torch

import gdsload
from gdsload import DataLoader
from gdsload.system.bulk_reads import BulkReads
from gdsload.system.numa import node_of, processors_near
from tests.drives import Meeting, dataset_over, folder_of, make_drives
from tests.on_gpu import check_as_on_cpu

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="module")
def over_two(tmp_path_factory):
    """48 MiB in shards of 4 MiB, over two drives, with a ragged field."""
    folder = tmp_path_factory.mktemp("two")
    drives = make_drives(folder, 2)
    schema = {"x": gdsload.Field("uint8", (2**16,)), "tokens": gdsload.Field("int32", (None,))}
    with gdsload.ShardWriter(folder / "d", schema, shard_bytes=2**22, spread_over=drives) as writer:
        for number in range(768):
            row = np.random.default_rng(number).integers(0, 256, 2**16, np.uint8)
            writer.write({"x": row, "tokens": np.full(number % 7, number, np.int32)})
    return folder / "d"


@pytest.mark.parametrize("backend", ["auto", "bounce", "mapped", "host"])
@pytest.mark.parametrize("shuffle", [False, "full", "block"])
def test_batches_are_those_of_the_cpu(over_two, backend, shuffle):
    options = {"batch_size": 17, "shuffle": shuffle, "seed": 5, "ragged": "offsets", "with_index": True}
    for dataset in (over_two, dataset_over(over_two, where=folder_of, cached=False)):
        check_as_on_cpu(dataset, {"backend": backend}, **options)


def test_bounce_has_reads_of_both_drives_under_way_at_the_same_time(over_two):
    meeting = Meeting()
    watched = dataset_over(over_two, lambda: meeting, folder_of, cached=False)
    options = {"batch_size": 64, "shuffle": "full", "fields": ["x"], "backend": "bounce", "mmap": False}
    with DataLoader(watched, device="cuda", **options) as loader:
        assert sum(len(batch["x"]) for batch in loader) == 768
        threads = {thread.name.rpartition("-")[0] for thread in threading.enumerate()}
    assert meeting.missed == 0
    assert {"gdsload-bounce-direct-0", "gdsload-bounce-direct-1"} <= threads


def test_threads_run_near_the_gpu(over_two):
    device = torch.device("cuda", 0)
    near, allowed, seen = processors_near(device), os.sched_getaffinity(0), []

    class Seeing(BulkReads):
        def read(self, fds, offsets, nbytes, addresses):
            seen.append(os.sched_getaffinity(0))
            return super().read(fds, offsets, nbytes, addresses)

        def read_one(self, fd, offset, into):
            seen.append(os.sched_getaffinity(0))
            return super().read_one(fd, offset, into)

    watched = dataset_over(over_two, Seeing, cached=False)
    with DataLoader(watched, 64, "full", fields=["x"], device=device, backend="bounce", mmap=False) as loader:
        for _ in loader:
            pass
    assert {frozenset(one) for one in seen} == {frozenset(near or allowed)}
    assert (near is None) or node_of(device) >= 0
    assert os.sched_getaffinity(0) == allowed
