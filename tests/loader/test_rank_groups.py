"""Ranks by a mesh or a process group: what each gets, and what they tell one another; four processes, gloo."""

import copy
import gc
import json
import pickle
import re

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from gdsload import Field, OptionError, ShardWriter

RANKS = 4

SCRIPT = """
import json, os, sys, warnings
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import RandomSampler
import gdsload

warnings.simplefilter("ignore")
path, words, folder = sys.argv[1:]
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
pair = pairs[rank // 2]

def loader(size=30, shuffle="full", **options):
    return gdsload.DataLoader(path, size, shuffle, device="cpu", with_index=True, **options)

def read(made):
    return [batch["index"].tolist() for batch in made]

def failing(made):
    found = []
    try:
        for batch in made:
            found.append(1)
    except Exception as error:
        return [len(found), made.state_dict()["position"], type(error).__name__, str(error)]
    return [len(found), None, None, None]

found = {}
found["mesh"] = read(loader(ranks=mesh))
found["group"] = read(loader(ranks=pair))
made = loader(ranks=mesh)
found["place"] = [made.state_dict()["global_batch"], len(made)]

torch.manual_seed(rank)
made = loader(ranks=mesh, seed=None)
early = made.state_dict()
before = read(made)
found["drawn"] = [early["seed"], made.seed, before, made.state_dict()["seed"]]
found["drawn by all"] = read(loader(seed=None))
again = loader(ranks=mesh, seed=None)
again.load_state_dict({**made.state_dict(), "epoch": 0})
found["drawn, resumed"] = [read(again) == before, again.seed == made.seed]
again = loader(15, seed=None)
again.load_state_dict(early)
found["undrawn"] = [again.seed, len(read(again)), again.seed]

found["other seed"] = failing(loader(ranks=mesh, seed=int(rank == 3)))
found["other order"] = failing(loader(ranks=dist.group.WORLD, shuffle=rank > 1))
made = loader(ranks=mesh)
if rank == 2:
    ahead = loader(ranks=(0, 2))
    next(iter(ahead))
    made.load_state_dict(ahead.state_dict())
found["other place"] = failing(made)
lengths = gdsload.TokenBudget(words, "t", 20, seed=int(rank > 1))
found["other budget"] = failing(gdsload.DataLoader(words, batch_sampler=lengths, device="cpu", ranks=mesh))
fields = ["n"] if rank % 2 else ["t"]
draw = lambda epoch: torch.arange(rank // 3, 500)
found["other indices"] = failing(loader(100, False, ranks=mesh, sampler=draw))
found["other fields"] = failing(gdsload.DataLoader(words, 10, fields=fields, device="cpu", ranks=mesh))

def noticed(made):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        next(iter(made))
        next(iter(made))
    return [str(one.message) for one in caught]

def budget(**options):
    return gdsload.DataLoader(words, batch_sampler=gdsload.TokenBudget(words, "t", 20, **options), device="cpu")

plain = {"order": loader(10), "twice": loader(10), "seed": loader(10, seed=rank), "budget": budget(seed=rank)}
def randomly(seed):
    return loader(10, False, sampler=lambda epoch: torch.randperm(1000, generator=torch.Generator().manual_seed(seed)))

plain |= {"function": randomly(rank)}
plain |= {"mixed": gdsload.DataLoader(gdsload.Mix([path], [1]), 10, seed=rank, device="cpu")}
quiet = {"in order": loader(10, False, seed=rank), "windows in order": budget(shuffle=False, seed=rank)}
quiet |= {"alone": loader(10, seed=rank, ranks=(0, 1)), "agreed": loader(10, seed=None)}
quiet |= {"other sizes": loader(20 + rank, seed=rank), "one function": randomly(5)}
found["noticed"] = {name: noticed(made) for name, made in plain.items()}
found["quiet"] = [noticed(made) for made in quiet.values()]

made = loader(100, False, ranks=mesh, sampler=RandomSampler(range(1000), generator=torch.Generator().manual_seed(rank)))
next(iter(made))
found["sampler"] = [made.state_dict()["rank"], made.state_dict()["world_size"]]
with open(f"{folder}/rank{rank}.json", "w") as file:
    json.dump(found, file)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def told(plain, tmp_path_factory, run_ranks):
    """The findings of each rank."""
    folder = tmp_path_factory.mktemp("ranks")
    with ShardWriter(folder / "words", {"t": Field("int32", (None,)), "n": Field("int64")}) as writer:
        texts = [torch.arange(number % 9, dtype=torch.int32) for number in range(100)]
        writer.write_batch({"t": texts, "n": torch.arange(100)})
    run_ranks(SCRIPT, RANKS, plain, folder / "words", folder)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(RANKS)]


def shared_out(ranks):
    """Return whether all samples come, and but for the last batch each to one of these ranks."""
    assert len({tuple(map(len, batches)) for batches in ranks}) == 1
    whole = [index for batches in ranks for batch in batches[:-1] for index in batch]
    assert len(whole) == len(set(whole))
    return {index for batches in ranks for batch in batches for index in batch} == set(range(1000))


@pytest.mark.slow
@pytest.mark.timeout(120)
class TestProcesses:
    def test_a_mesh_shares_out_among_its_data_parallel_ranks(self, told, load, plain):
        batches = [one["mesh"] for one in told]
        assert batches[0] == batches[1] != batches[2] == batches[3]
        assert shared_out([batches[0], batches[2]])
        expected = load(plain, 30, "full", ranks=(1, 2), with_index=True)
        assert batches[3] == [batch["index"].tolist() for batch in expected]
        assert [one["place"] for one in told] == [[60, 17]] * RANKS

    def test_a_group_has_ranks_of_its_own(self, told):
        batches = [one["group"] for one in told]
        assert batches[0] == batches[2] != batches[1] == batches[3]
        assert shared_out(batches[:2])

    def test_a_seed_is_drawn_and_agreed_upon(self, told):
        early, seeds, batches, states = zip(*(one["drawn"] for one in told), strict=True)
        assert early == (None,) * RANKS
        assert len(set(seeds)) == 1
        assert states == seeds
        assert seeds[0] not in (0, None)
        assert batches[0] == batches[1] != batches[2] == batches[3]
        assert shared_out([batches[0], batches[2]])
        assert shared_out([one["drawn by all"] for one in told])

    def test_a_state_carries_it(self, told):
        assert [one["drawn, resumed"] for one in told] == [[True, True]] * RANKS
        assert {(one["undrawn"][0], one["undrawn"][1]) for one in told} == {(None, 17)}
        assert len({one["undrawn"][2] for one in told}) == 1

    def test_their_fields_may_differ(self, told):
        assert [one["other fields"] for one in told] == [[5, None, None, None]] * RANKS

    @pytest.mark.parametrize(
        ("case", "message"),
        [
            ("other seed", "seed is 0 on ranks 0, 1, 2, 1 on rank 3. Make it in all ranks with the same dataset"),
            ("other order", "order is {'shuffle': 'sequential'"),
            ("other place", "position is 0 on ranks 0, 1, 3, 60 on rank 2"),
            ("other indices", "the sampler's indices is '"),
            ("other budget", "the batch_sampler's seed is 0 on ranks 0, 1, 1 on ranks 2, 3"),
        ],
    )
    def test_ranks_that_differ_are_named_in_all_of_them(self, told, case, message):
        for one in told:
            batches, _, kind, text = one[case]
            assert (batches, kind) == (0, "OptionError")
            assert "the ranks of this loader do not run the same one" in text
            assert message in text

    def test_another_seed_is_noticed_where_nothing_was_said_of_other_ranks(self, told):
        for name in ("seed", "budget", "mixed"):
            said = [text for one in told for text in one["noticed"][name]]
            assert len(said) == RANKS - 1  # the first one cannot know
            seeds = {re.match(r"rank (\d) has begun this loader with seed \1, and rank", text)[1] for text in said}
            assert len(seeds) == 1
            assert all("some samples come several times in an epoch, and others never" in text for text in said)
        said = [text for one in told for text in one["noticed"]["function"]]
        assert len(said) == RANKS - 1
        assert all("with indices of digest" in text and "that all ranks seed with the epoch" in text for text in said)
        assert {tuple(one["noticed"][name]) for one in told for name in ("order", "twice")} == {()}
        assert [one["quiet"] for one in told] == [[[]] * 6] * RANKS

    def test_the_state_of_a_sampler_names_the_rank_among_the_data_parallel_ones(self, told):
        assert [one["sampler"] for one in told] == [[0, 2], [0, 2], [1, 2], [1, 2]]


class TestMesh:
    @pytest.mark.parametrize(
        ("names", "shape", "rank", "wanted"),
        [
            (("dp", "tp"), (4, 2), 5, (2, 4)),
            (("tp", "dp"), (2, 4), 5, (1, 4)),
            (("dp_replicate", "dp_shard", "tp"), (2, 2, 2), 6, (3, 4)),
            (("pp", "dp_replicate", "cp", "dp_shard"), (1, 2, 2, 2), 7, (3, 4)),
            (("data_parallel", "tensor_parallel"), (2, 4), 3, (0, 2)),
            (("replicate", "shard"), (2, 4), 5, (5, 8)),
            (("tp",), (8,), 3, (0, 1)),
            (("anything",), (8,), 3, (3, 8)),
            (None, (8,), 3, (3, 8)),
        ],
        ids=str,
    )
    def test_dimensions_are_known_by_name(self, load, plain, join, names, shape, rank, wanted):
        join(rank, 8)
        loader = load(plain, 10, ranks=init_device_mesh("cpu", shape, mesh_dim_names=names), with_index=True)
        rank, world_size = wanted
        assert loader.state_dict()["global_batch"] == 10 * world_size
        assert next(iter(loader))["index"].tolist() == list(range(10 * rank, 10 * rank + 10))

    @pytest.mark.parametrize("names", [("a", "b"), ("dp", "b"), ("a", "tp"), None], ids=str)
    def test_a_dimension_of_another_name_is_refused_where_there_are_several(self, load, plain, join, names):
        join(3, 8)
        with pytest.raises(OptionError, match=r"get the same samples, or others.*(`ranks=mesh\['name'\]|`mesh_dim)"):
            load(plain, 10, ranks=init_device_mesh("cpu", (4, 2), mesh_dim_names=names))

    def test_and_taken_where_it_is_chosen(self, load, plain, join):
        join(3, 8)
        mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("a", "b"))
        for name, wanted in (("a", 10), ("b", 10)):
            assert next(iter(load(plain, 10, ranks=mesh[name], with_index=True)))["index"][0] == wanted


class TestOptions:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (
                lambda: DeviceMesh("cpu", [0, 2], mesh_dim_names=("dp",)),
                "ranks has no rank for this process: DeviceMesh",
            ),
            (lambda: dist.new_group([0, 2]), "which this process is no rank of"),
            # A part of a mesh has no seed of all.
            (lambda: init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["dp"], "there are 4.*whole mesh, or"),
        ],
    )
    def test_ranks_that_cannot_be_used(self, load, plain, join, make, message):
        join(1, 4)
        with pytest.raises(OptionError, match=message):
            load(plain, ranks=make(), seed=None)

    @pytest.mark.parametrize("name", ["mesh", "process_group"])
    def test_copies_are_made_with_the_same_and_no_other_process_gets_one(self, load, plain, join, name):
        join(1, 2)
        given = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)) if name == "mesh" else dist.group.WORLD
        loader = load(plain, 10, with_index=True, ranks=given)
        with copy.deepcopy(loader) as found, copy.copy(loader) as other:
            for one in (found, other):
                assert one.state_dict() == loader.state_dict()
                assert len(one) == 50
        with pytest.raises(OptionError, match="the loader cannot be pickled.*in each rank's process, or pass"):
            pickle.dumps(loader)
        if name == "process_group":
            dist.destroy_process_group()
            del given
            gc.collect()
            with copy.deepcopy(loader) as found:
                for one in (loader, found):
                    with pytest.raises(OptionError, match="ranks names a process group that has been destroyed"):
                        next(iter(one))
