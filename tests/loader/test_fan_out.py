"""Peers that read a part of each batch each, beside one process that reads all of it; two processes, gloo."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch.distributed as dist
from PIL import Image
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import gdsload
from gdsload import Field, OptionError
from gdsload.transforms import DecodeImage

SAMPLES, STEPS = 53, 8

SCRIPT = """
import json, os, sys, time, warnings
from datetime import timedelta
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import BatchSampler, RandomSampler
import gdsload
from gdsload.loader import fan_out
from gdsload.loader.peer_check import batch_digest
from gdsload.transforms import DecodeImage

warnings.simplefilter("ignore")
path, pictures, plain, folder = sys.argv[1:]
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))

def loader(shared, size=7, where=path, **options):
    return gdsload.DataLoader(where, size, device="cpu", mesh=mesh, fan_out=shared, **options)

def read(made, epochs=1):
    found = []
    for _ in range(epochs):
        for batch in made:
            found.append([batch_digest(batch), made.state_dict(), made.real_samples])
    return found

def failing(made, wanted=100):
    found = []
    try:
        for batch in made:
            found.append(1)
            if len(found) == wanted:
                break
    except Exception as error:
        where = None if made.order_options.shuffle == "sampler" else made.state_dict()["position"]
        return [len(found), type(error).__name__, str(error), where]
    return [len(found), None, None, None]

def drawn(batch, generator):
    batch["image"] = batch["image"] + torch.rand(batch["image"].shape, generator=generator)
    return batch

def seeded():
    return RandomSampler(range(53), generator=torch.Generator().manual_seed(3))

fixed = ["image", "label", "flag", "u16", "bf16", "fp8"]
cases = {
    "order": {}, "full": {"shuffle": "full", "with_index": True, "epochs": 2}, "one": {"size": 1, "fields": ["label"]},
    "block": {"shuffle": "block", "block": 4, "window": 12, "lanes": 2, "fields": ["label", "codes"]},
    "offsets": {"ragged": "offsets", "shuffle": "full"}, "varlen": {"ragged": "varlen"},
    "padded": {"ragged": "padded", "padding_value": 3, "shuffle": "full"},
    "pad": {"tail": "pad", "with_real": True, "size": 8}, "drop": {"tail": "drop"},
    "transforms": {"device_transform": drawn, "transform": lambda batch: {**batch, "text": None}, "shuffle": "full"},
    "buffers": {"reuse_buffers": True, "fields": fixed}, "tuple": {"as_tuple": ("label", "text"), "check_peers": True},
    "images": {"where": pictures, "size": 5, "decode": {"image": DecodeImage(size=16, crop="random-resized", flip=0.5)}},
    "encoded": {"where": pictures, "size": 5}, "wide": {"where": plain, "size": 9, "shuffle": "full"},
    "even": {"where": plain, "size": 8, "mmap": False},
    "windows": {"where": gdsload.Windows(path, offsets={"image": [0, 2, 4], "label": range(-1, 3), "bf16": [1, 0, 1],
                "fp8": range(2), "u16": [3], "flag": range(0, 6, 2)}), "size": 6, "shuffle": "full"},
}
found = {"same": {}, "bytes": {}}
for name, options in cases.items():
    options = dict(options)
    epochs = options.pop("epochs", 1)
    alone = {key: value for key, value in options.items() if key != "check_peers"}
    one, both = loader(False, **alone), loader(True, **options)
    found["same"][name] = read(one, epochs) == read(both, epochs)
    found["bytes"][name] = [sum(made.backend.bytes_by_path.values()) for made in (one, both)]
    one.close(), both.close()
for name, sampler in {"sampler": {"sampler": 1}, "batch_sampler": {"batch_sampler": 1}}.items():
    options = {"sampler": seeded()} if name == "sampler" else {"size": 1, "batch_sampler": BatchSampler(seeded(), 6, False)}
    expected = read(loader(False, **options))
    options = {"sampler": seeded()} if name == "sampler" else {"size": 1, "batch_sampler": BatchSampler(seeded(), 6, False)}
    found["same"][name] = expected == read(loader(True, **options))

made = loader(True, shuffle="full", with_index=True)
whole = read(made)
resumed = []
for step in range(len(whole) - 1):
    again = loader(step % 2 == 0, shuffle="full", with_index=True)
    again.load_state_dict(whole[step][1])
    resumed.append(read(again) == whole[step + 1:])
found["resumed"] = resumed

def broken(sampler):
    for number in range(53):
        if rank == 1 and number == 30:
            raise ValueError("no index here")
        yield number
class Broken:
    def __iter__(self):
        return broken(self)
    def __len__(self):
        return 53
found["broken"] = failing(loader(True, sampler=Broken()))

def unlucky(batch):
    if rank == 1 and int(batch["label"][0]) == 14:
        raise KeyError("nothing")
    return batch
made = loader(True, transform=unlucky)
found["transform"] = [failing(made) for _ in range(1 + rank)]

made = loader(True)
found["left"] = [failing(made, 2), failing(made)] if rank == 0 else [failing(made)]
alone = loader(False)
made.set_epoch(5), alone.set_epoch(5)
found["after"] = read(made) == read(alone)
found["lengths"] = failing(loader(True, sampler=range(14 + 7 * rank)))
found["differs"] = failing(gdsload.DataLoader(path, 7, device="cpu", mesh=mesh, fan_out=rank == 0))

def full(tensor, *shape, **options):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
new_empty, torch.cuda.mem_get_info = torch.Tensor.new_empty, lambda device: (2**20, 2**30)
found["room"] = []
for options, ranks in [({"where": plain}, {1}), ({"fields": ["label"]}, {0, 1})]:
    made = loader(True, **options)
    torch.Tensor.new_empty = full if rank in ranks else new_empty
    found["room"].append(failing(made))
    torch.Tensor.new_empty = new_empty
    found["room"].append(failing(made, 2))

fan_out.PATIENCE = timedelta(seconds=0.5)
made = loader(True)
batches = iter(made)
next(batches)
if rank == 0:
    try:
        next(batches)
    except Exception as error:
        found["alone"] = [type(error).__name__, str(error)]
with open(f"{folder}/rank{rank}.json", "w") as file:
    json.dump(found, file)
dist.barrier()
dist.destroy_process_group()
"""


def write_pictures(path):
    with gdsload.ShardWriter(path, {"image": Field("image"), "label": Field("int64")}) as writer:
        for number in range(22):
            writer.write({"image": encoded(number), "label": number})
    return path


def encoded(number):
    random = np.random.default_rng(number)
    out = io.BytesIO()
    Image.fromarray(random.integers(0, 256, (9 + number, 40 - number, 3), np.uint8)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture(scope="module")
def told(writers, tmp_path_factory, run_ranks):
    """What each rank has found."""
    folder = tmp_path_factory.mktemp("peers")
    write_rich, write_plain = writers
    paths = [write_rich(folder / "rich", SAMPLES), write_pictures(folder / "pictures")]
    paths.append(write_plain(folder / "plain", 53, width=70_000, shard_bytes="4MiB"))
    run_ranks(SCRIPT, 2, *paths, folder)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.timeout(120)
class TestProcesses:
    def test_batches_and_states_are_those_of_one_who_reads_all(self, told):
        for one in told:
            assert {name for name, same in one["same"].items() if not same} == set()

    def test_each_reads_its_part(self, told):
        for one in told:
            for name, (whole, part) in one["bytes"].items():
                # All is read where a batch is one sample; parts of odd batches overlap by one.
                assert part == whole if name == "one" else 0.4 * whole < part < 0.65 * whole, name

    def test_it_is_resumed_at_any_step_with_it_and_without(self, told):
        for one in told:
            assert one["resumed"] == [True] * (STEPS - 1)

    def test_what_one_cannot_read_fails_at_all(self, told):
        assert told[1]["broken"] == [4, "ValueError", "no index here", None]
        message = "rank 1, which reads a part of each batch, failed: ValueError: no index here"
        assert told[0]["broken"] == [4, "ReadError", message, None]

    def test_memory_that_is_used_up_is_no_peer_that_has_ended(self, told):
        """And peers are told of it, where it is known before all go on to their parts."""
        said = "cpu has no memory left for batches of parts that peers have read: 1 MiB of 1 GiB are free"
        failures = [one["room"][::2] for one in told]
        assert [one[:2] for each in told for one in each["room"][1::2]] == [[2, None]] * 4  # the next epochs go on
        assert [[one[:2] for one in failed] for failed in failures] == [
            [[0, "ReadError"], [0, "BudgetError"]],
            [[0, "BudgetError"], [0, "BudgetError"]],
        ]
        assert f"rank 1, which reads a part of each batch, failed: BudgetError: {said}" in failures[0][0][2]
        assert all(said in one[2] for failed in failures for one in failed)

    def test_what_fails_behind_the_exchange_is_noticed_at_the_next_batch(self, told):
        [batches, kind, text, position] = told[0]["transform"][0]
        assert (batches, kind, position) == (3, "OptionError", 21)
        assert "rank 0: loader " in text
        assert "epoch 0, step 3, 7 samples; rank 1: loader " in text
        assert "epoch 1, step 0, 7 samples" in text
        assert [one[:2] for one in told[1]["transform"]] == [[2, "KeyError"], [0, "OptionError"]]

    def test_epochs_that_are_left_at_different_batches_end_and_the_next_ones_go_on(self, told):
        assert told[0]["left"][0][:2] == [2, None]
        assert told[0]["left"][1][:2] == [0, "OptionError"]
        assert told[1]["left"][0][:2] == [2, "OptionError"]
        assert told[1]["left"][0][3] == 14
        assert "leave epochs at the same batch" in told[1]["left"][0][2]
        assert [one["after"] for one in told] == [True, True]

    def test_none_waits_for_one_whose_epoch_is_over(self, told):
        for one in told:
            assert one["lengths"][:2] == [2, "OptionError"]
            assert "step 2, no batch left" in one["lengths"][2]

    def test_all_of_them_have_to_want_it(self, told):
        for one in told:
            assert one["differs"][:2] == [0, "OptionError"]
            assert "fan_out is True on rank 0, False on rank 1" in one["differs"][2]

    def test_one_that_does_not_come_is_named(self, told):
        kind, text = told[0]["alone"]
        assert kind == "ReadError"
        assert "rank 1, which reads a part of each batch, did not come for step 1 of epoch 0 within 0.5 s" in text


@pytest.fixture
def world():
    """Makes this process one of two ranks of tensor parallelism; nobody else is there."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


class TestOptions:
    def test_what_cannot_be_exchanged_is_refused(self, load, plain, world, tmp_path):
        with pytest.raises(OptionError, match="sample_transform may make anything of them. Leave one of them out"):
            load(plain, mesh=world, fan_out=True, sample_transform=dict)
        with pytest.raises(OptionError, match="images of one size, and those of 'image' are decoded in sizes of their"):
            load(write_pictures(tmp_path / "d"), mesh=world, fan_out=True, decode={"image": DecodeImage()})

    def test_a_rank_without_peers_reads_all(self, load, plain):
        dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
        try:
            mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
            assert len(next(iter(load(plain, 10, mesh=mesh, fan_out=True)))["x"]) == 10
        finally:
            dist.destroy_process_group()
