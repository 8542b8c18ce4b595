"""Refusals of loaders and datasets: each value or call, the option that the error names, and a piece of its remedy."""

import itertools

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, RandomSampler, Subset, TensorDataset

from gdsload import (
    Auto,
    BlockShuffle,
    Bounce,
    DataLoader,
    Field,
    Gds,
    LengthBuckets,
    Memory,
    Mix,
    OptionError,
    Padded,
    PerSample,
    ShardDataset,
    ShardWriter,
    TokenBudget,
    Verify,
    Windows,
    cached,
)
from gdsload.transforms import DecodeImage


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


class Mine(Dataset):
    def __getitem__(self, index):
        return index


class Transformed(ShardDataset):
    def __getitem__(self, index):
        return super().__getitem__(index)["label"] * 2


class Wrapped(Subset):
    """A user's class, which may do anything to a sample."""


RANDOM = DecodeImage(size=8, crop="random-resized")


def drawn(epoch):
    """A sampler that is a function of the epoch."""
    return torch.randperm(143)


def padded(value):
    return {"ragged": Padded(value)}


def load(dataset, batch_size=1, **options):
    return DataLoader(dataset, batch_size, **{"device": "cpu", **options})


# An option, its values, and what the error says of each.
VALUES = [
    ("ahead", [None, "no", 2], "ahead is .*Supported are False, True"),
    ("as_tuple", ["image"], r"as_tuple is the text 'image'. Pass a list: `as_tuple=\['image'\]`"),
    ("as_tuple", [[], [0]], "as_tuple is .*Name the fields in their order"),
    ("as_tuple", [["imag"]], "no field 'imag'"),
    ("as_tuple", [["index"]], "no field 'index'"),
    ("as_tuple", [["label", "real"]], "no field 'real'"),
    (
        "backend",
        ["gsd", Gds, None],
        r"backend is .*Pass one of 'auto', 'gds', .* a value such as `gdsload\.Auto.* or a BackendRow",
    ),
    ("batch_size", [0, -1, 1.5, "8", None, [8]], "batch_size is"),
    ("cache", ["disk"], "cache is 'disk'"),
    ("collate_fn", [5], "collate_fn is 5, which cannot be called"),
    ("decode", [[]], "is no mapping of fields"),
    ("decode", [{"picture": RANDOM}], "has no field 'picture'"),
    ("decode", [{"image": "random"}], r"decode\['image'\] is 'random'"),
    ("decode", [{"label": RANDOM}], "names 'label', which is .* and holds no encoded images"),
    ("device", ["nonsense", 3.5, "cuda:99", ""], 'device .* cannot be used here: .*Pass `device="cpu"`'),
    ("device", ["meta"], "device 'meta'"),
    ("device_transform", [5, [len, 5], "name"], "device_transform is .* cannot be called"),
    ("fields", [["labels"]], "no field 'labels'. It has 'image', 'label'"),
    ("fields", ["label"], r"the text 'label'.*fields=\['label'\]"),
    ("fields", [[]], "fields is empty"),
    ("fields", [5], "fields is 5, which is no list"),
    ("fields", [[["label"]]], r"no field \['label'\]"),
    ("fields", [[None]], "no field None"),
    ("generator", [3], "generator is 3, which is no torch.Generator"),
    ("memory", ["1GiB", 2**30, Memory, 0, False], r"memory is .*Pass `memory=gdsload\.Memory\(prefetch="),
    ("mmap", ["no"], "mmap is 'no'"),
    ("ragged", ["dense", Padded], "ragged is .*Supported are 'jagged', 'offsets', 'padded'"),
    ("ranks", [5, "dp", (0,), (0, 1, 2)], r"ranks is .*Pass `ranks=\(rank, world_size\)`, a DeviceMesh .*ProcessGroup"),
    ("ranks", [(-1, 2), ("0", 2)], "rank is"),
    ("ranks", [(0, 0), (0, None)], "world_size is"),
    ("ranks", [(2, 2)], "ranks 0 to 1"),
    ("reuse_buffers", ["yes", 2, None], "reuse_buffers is"),
    ("sample_transform", [5], "sample_transform is 5: 5 cannot be called"),
    ("sampler", [torch.zeros(3, dtype=torch.bool), torch.zeros(2, 2, dtype=torch.int64)], "sampler is .*Pass"),
    ("sampler", [np.array([0.5]), 5, RandomSampler], "sampler is .*Pass"),
    ("seed", [-1, 2**64, 1.0, "1"], "seed is"),
    ("shuffle", [1, 0, "yes", "sequential", "Full", "", 2.0], 'no way to shuffle.*Pass `shuffle="full"`'),
    ("tail", ["cut"], "tail is 'cut'.*'share', 'pad', 'drop'"),
    ("transform", [5], "transform is 5, which cannot be called"),
    ("verify", ["some", True, None, []], "verify is .*Supported are 'off', 'sample', 'all', and gdsload.Verify"),
    # Keywords that a loader has not.
    ("batchsize", [1], r"no option 'batchsize'\. Did you mean 'batch_size'\?$"),
    ("shufle", [1], r"no option 'shufle'\. Did you mean 'shuffle'\?$"),
    ("zzz", [True], r"no option 'zzz'\. Its options are .*with_index"),
]

# Values that refuse what they are made of.
GROUPS = [
    *((lambda value=value: Memory(arena=value), "arena is") for value in (0, -1, 1.5, "many", "", True)),
    *((lambda value=value: Memory(prefetch=value), "prefetch is") for value in (0, -1, 1.5, "many", "", True)),
    *((lambda name=name: Memory(**{name: "x"}), f"{name} is 'x'") for name in ("registered", "vram", "ram")),
    *((lambda name=name: Verify(**{name: "x"}), f"{name} is 'x'") for name in ("stored", "on_corrupt")),
    *((lambda value=value: Padded(value), "which is no number") for value in ("0", None, {"points": "0"})),
    *(
        (lambda kind=kind, value=value: kind(threads=value), "threads is")
        for kind in (Auto, Bounce, Gds)
        for value in (0, -1, 513, 1.5, "8")
    ),
    *((lambda kind=kind: kind(pinned="1KiB"), "pinned is 1024 bytes, but must be at") for kind in (Auto, Bounce)),
    *((lambda kind=kind: kind(engine="cuda"), 'engine is .*"cufile" or "kvikio"') for kind in (Auto, Gds)),
    (lambda: Gds(compat="no"), "compat is 'no'"),
    (lambda: cached(iter([1])), "has no length"),
    (lambda: cached([1], 0), "batches"),
    (lambda: PerSample([]), "has no transform"),
    (lambda: PerSample([len, 5]), "5 cannot be called"),
    (lambda: PerSample(len, workers=0), "workers is 0. Pass `ahead=False`"),
    *((lambda value=value: PerSample(len, workers=value), "workers is") for value in (-1, 513, 1.5)),
    (lambda: PerSample(lambda _: 1, processes=True), "sent to a worker process.*Define it in a module"),
]

# Options that do not go together.
TOGETHER = [
    ({"as_tuple": ["image"], "fields": ["label"]}, "as_tuple names 'image', which `fields=.* leaves out"),
    ({"batch_sampler": [[1]], "batch_size": 2}, "batch_sampler cannot be used together with `batch_size"),
    ({"batch_sampler": [[1]], "drop_last": True}, "together with `drop_last"),
    ({"batch_sampler": [[1]], "sampler": [1]}, "together with `sampler"),
    ({"batch_sampler": [[1]], "shuffle": "full"}, "together with `shuffle"),
    ({"batch_sampler": [[1]], "tail": "drop"}, "batch_sampler cannot be used together with `tail='drop'"),
    ({"generator": torch.Generator(), "seed": 3}, "generator cannot be used together with `seed=3`"),
    ({"ranks": (0, 2), "seed": None}, "seed is None, so all ranks must agree upon one.*process group as `ranks`"),
    ({"sample_transform": PerSample(len, processes=True), "ahead": False}, "processes cannot .*with `ahead=False"),
    *(
        ({option: len, other: value}, f"{option} cannot be used together with `{other}='{value}'")
        for option in ("sample_transform", "collate_fn")
        for other, value in (("ragged", "padded"), ("cache", "vram"), ("backend", "mapped"))
    ),
    ({"sample_transform": len, "ragged": Padded(1)}, "sample_transform cannot be used together with `ragged='padded'"),
    ({"sample_transform": len, "backend": Gds()}, "sample_transform cannot be used together with `backend='gds'"),
    ({"sampler": [1], "shuffle": BlockShuffle(5)}, "sampler cannot be used together with `shuffle"),
    ({"sampler": drawn, "shuffle": True}, "sampler cannot be used together with `shuffle"),
    ({"sampler": drawn, "shuffle": BlockShuffle(block=5)}, "sampler cannot be used together with `shuffle"),
    ({"batch_sampler": drawn}, "batch_sampler is <function drawn.*Pass a function as `sampler`"),
    ({"sampler": [1], "ranks": (0, 1)}, "sampler cannot be used together with `ranks"),
    ({"batch_sampler": [[1]], "ranks": (0, 1)}, "batch_sampler cannot be used together with `ranks"),
    ({"drop_last": True, "tail": "pad"}, "drop_last cannot be used together with `tail='pad'"),
    ({"sampler": [1], "tail": "pad"}, "sampler cannot be used together with `tail='pad'.*Distributed"),
    # Padding that a field cannot hold, and buffers that it cannot use.
    (padded(-100), "'codes': the padding is -100, which uint16 cannot hold: it holds whole numbers from 0 to 65535"),
    (padded(float("nan")), "field 'codes': the padding is nan, which uint16 cannot hold"),
    (padded({"codes": np.float64(0.5)}), "field 'codes': the padding is .*0.5.*, which uint16 cannot hold"),
    (padded({"points": 1e300}), "'points': the padding is 1e.300, which float32 cannot hold: .* up to 3.4"),
    (padded({"points": 1j}), "field 'points': the padding is 1j, which float32 cannot hold"),
    (padded({"points": 2**24 + 1}), "float32 cannot hold: it holds .*, whole numbers exactly up to 16777216"),
    (padded({"ragged_fp8": 1e6}), "'ragged_fp8': the padding is 1000000.0, which float8_e5m2 cannot .* 57344"),
    (padded({"text": 0}), "names 'text', which is no field that is padded. Those are 'points', 'normals'"),
    *(
        ({"reuse_buffers": True, "fields": ["image", name], "ragged": ragged}, f"a fixed shape, but '{name}' is")
        for name, ragged in itertools.product(("points", "text", "blob"), ("jagged", "padded", "offsets", "varlen"))
    ),
]


@pytest.mark.parametrize(("make", "message"), GROUPS)
def test_groups(make, message):
    with pytest.raises(OptionError, match=message):
        make()


@pytest.mark.parametrize(
    ("given", "message"),
    [({name: value}, message) for name, values, message in VALUES for value in values] + TOGETHER,
    ids=lambda one: one if isinstance(one, str) else ",".join(one),
)
def test_options(rich, given, message):
    with pytest.raises(OptionError, match=message):
        load(rich, **given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"as_tuple": ["image"], "transform": lambda batch: batch["image"]}, "made a Tensor of the batch"),
        ({"as_tuple": ["image"], "transform": lambda _: {"y": 1}}, "'image', .*It has 'y'"),
        ({"with_real": True, "device_transform": lambda batch: batch["image"]}, "a Tensor.*`loader.real_samples"),
    ],
)
def test_what_transforms_took_away(rich, options, message):
    with load(rich, **options) as loader, pytest.raises(OptionError, match=message):
        next(iter(loader))


ADDED = {"index": {"with_index": True}, "real": {"with_real": True}}
ADDED["image.decoded"] = {"decode": {"image": DecodeImage(on_error="zeros")}}


@pytest.mark.parametrize(("name", "options"), ADDED.items())
def test_a_field_that_has_the_name_of_what_is_added(tmp_path, name, options):
    with ShardWriter(tmp_path / "d", {"image": Field("image"), name: "int64"}):
        pass
    with pytest.raises(OptionError, match=f"adds '{name}'"):
        load(tmp_path / "d", **options)


# Datasets that a loader cannot read.
UNREADABLE = r"gdsload cannot read a .* from its shards\. Convert .* `gdsload\.convert.*Subset"
DATASETS = [
    *((lambda _, it=it: it, UNREADABLE) for it in (TensorDataset(torch.zeros(3)), Mine(), Dataset(), [1, 2], None, 5)),
    (lambda _: Subset(Mine(), [1]), UNREADABLE),
    (lambda _: ConcatDataset([Subset([1], [0])]), UNREADABLE),
    (lambda _: Stream(), r"cannot read a \S*Stream from its shards.*`sample_transform`"),
    (lambda data: Transformed(data.path), "cannot read a .*Transformed.*`sample_transform`"),
    (lambda data: Wrapped(data, [0]), "cannot read a .*Wrapped.* Convert it once"),
    (lambda data: ConcatDataset([data, Wrapped(data, [0])]), "cannot read a .*Wrapped.* Convert it once"),
    *(
        (lambda data, indices=indices: Subset(data, indices), "a Subset has indices .* but its dataset 143 samples")
        for indices in ([143], [-144], [0, 10**15], [0, 2**62], np.array([2**64 - 1, 2**64 - 3], "u8"))
    ),
    *(
        (lambda data, indices=indices: Subset(data, indices), "the indices of a Subset are .*, no whole numbers")
        for indices in ([0.5], ["a"], ["0"], [None], [True, False], torch.tensor([0.5]), np.array([1.0]))
    ),
    *(
        (lambda data, indices=indices: Subset(data, indices), "Subset are an array of shape .*Pass a vector")
        for indices in ([[1, 2], [3, 4]], [[[1], [2]]], [[], []])
        for indices in (indices, np.array(indices), torch.tensor(indices))
    ),
    (lambda data: Subset(data, [[1], [2, 3]]), "the indices of a Subset are .*no"),
    (lambda data: ConcatDataset([Windows(data, 2), data]), "some are windows, and some are not, or of another length"),
    (lambda data: ConcatDataset([Windows(data, 2), Windows(data, 2, step=2)]), "of another length or other offsets"),
    (lambda data: Subset(Mix([data], [1]), [1]), "a Mix is a part of another dataset"),
    (lambda data: ConcatDataset([Mix([data], [1])]), "a Mix is a part of another dataset"),
    (lambda data: Mix([Mix([data], [1])], [1]), "a Mix is a part of another dataset"),
]


@pytest.mark.parametrize(("made", "message"), DATASETS, ids=lambda one: one if isinstance(one, str) else "")
def test_datasets(rich, made, message):
    with pytest.raises(OptionError, match=message):
        load(made(ShardDataset(rich)))


def of(method, *arguments, **options):
    """A call of a dataset."""
    return lambda data: getattr(data, method)(*arguments, **options)


BY_INDEX = ("select", "gather", "read_batch", "sample_bytes", "__getitems__")
MASK = np.arange(143) == 3
MASKS = (MASK, torch.tensor(MASK), MASK.tolist(), tuple(MASK.tolist()), list(MASK), [*torch.tensor(MASK)])
NO_OFFSETS = ([], 5, None, [0.5], [True, False], [2**70], range(0), range(2**70), [-(2**48) - 1], {"a": 1}, [[0], [1]])
SHAPES = ((), (2, 2), (1, 2), (0, 3))

CALLS = [
    (of("column", "labels"), r"the dataset has no field 'labels'\. It has 'image', 'label'"),
    (of("lengths", "labels"), r"the dataset has no field 'labels'\. It has 'image', 'label'"),
    (of("lengths", "image"), r"all samples of the field 'image' have the shape \(3, 5\)"),
    (of("read_batch", [0], fields="label"), "fields is the text 'label'"),
    (of("read_batch", [0], fields=[]), "fields is empty"),
    (of("read_batch", [0], fields=["x"]), "no field 'x'"),
    (of("read_batch", [0], fields=3), "fields is 3"),
    (of("read_batch", torch.tensor([1.0])), "is no index of a sample, which is a whole number"),
    (of("gather", [0], fields=["lable"], device="cpu"), "no field 'lable'"),
    (of("gather", [0], device="gpu"), "device 'gpu' cannot be used here"),
    (of("select", 3), "3 is no index of a sample"),
    (of("__getitem__", "label"), r"Pass dataset\.column\('label'\) for a field of all samples"),
    (of("__getitem__", slice(1, 3)), r"slice.1, 3, None. is no index.*dataset.select.range.len.dataset...1:3"),
    *((of("__getitem__", odd), "is no index of a sample") for odd in (1.0, "0", None, (1, 2), [0], slice(0, 2))),
    *((of(call, mask), r"indices are a mask.*np\.flatnonzero") for call in BY_INDEX for mask in MASKS),
    *(
        (of(call, indices), "indices are an array of shape")
        for call, shape in itertools.product(BY_INDEX, SHAPES)
        for indices in (np.zeros(shape, np.int64), np.zeros(shape, np.int32), torch.zeros(shape, dtype=torch.int64))
    ),
    *(
        (of("filter", lambda _, given=given: given, fields=["text"]), f"the predicate returned .*{message}")
        for given, message in (
            (torch.zeros(143), "float32 of shape"),
            (torch.ones(142, dtype=torch.bool), r"bool of shape \(142,\) for a batch of 143 samples"),
            (True, "a bool"),
            (None, "a NoneType"),
            ([True] * 143, "a list"),
        )
    ),
    *(
        (lambda data, odd=odd: load(data).set_epoch(odd), f"epoch is {odd!r}, (which|but)")
        for odd in (-1, 2**64, 1.0, "1", None)
    ),
    (lambda data: load(data, shuffle=True).sampler.set_epoch(-1), "epoch is -1"),
    (lambda data: load(data, 10).set_epoch(0, 16), "step is 16, but the epoch has 15 steps"),
    (lambda data: load(data, 10).set_epoch(0, -1), "step is -1"),
    (lambda data: load(data, 10, sampler=[1]).set_epoch(0, 1), "step cannot be set with a sampler"),
    (lambda data: Windows(data, 0), "length is 0"),
    (lambda data: Windows(data, 2**70), "length is 1180591620717411303424, but must be at most"),
    (lambda data: Windows(data, 2, stride=2**70), "stride is 1180591620717411303424, but must be at most"),
    (lambda data: Windows(data, 2, within="epsiode"), "no field 'epsiode'"),
    (lambda data: Windows(data, 2, step=0), "step is 0"),
    (lambda data: Windows(data, offsets={"label": [0]})[1.5], "1.5 is no index of a sample"),
    (lambda data: Windows(data, 2**40, step=2**40), "length times step is 1208925819614629174706176, but must be at m"),
    *(
        (lambda data, odd=odd: Windows(data, **odd), "either a length, with or without a step, or offsets. P")
        for odd in ({}, {"length": 2, "offsets": {"label": [0]}}, {"step": 2, "offsets": {"label": [0]}}, {"step": 3})
    ),
    *(
        (lambda data, odd=odd: Windows(data, offsets=odd), "offsets is .*, which names no field. Pass a dict")
        for odd in ({}, [0, 5], "label", 5, range(4))
    ),
    *(
        (lambda data, odd=odd: Windows(data, offsets={"label": odd}), "(?s)offsets.'label'. is .*, which is no list of")
        for odd in (*NO_OFFSETS, MASK, torch.ones(2, 2, dtype=torch.int64))
    ),
    (lambda data: Windows(data, offsets={"lable": [0]}), "no field 'lable'. It has 'image', 'label'"),
    (lambda data: Windows(data, offsets={"points": [0]}), "'points' is ragged or a text. Leave it out"),
    (lambda data: load(Windows(data, offsets={"label": [2]}), fields=["image"]), "no field 'image'. It has 'label'."),
    (lambda data: Windows(Subset(data, [0]), 2), "windows are of a ShardDataset"),
    (lambda data: load(Mix([data], [1]), shuffle="block"), 'a Mix cannot be shuffled in blocks.*`shuffle="full"'),
    (lambda data: load(Mix([data], [1]), shuffle=BlockShuffle(window=10)), "a Mix cannot be shuffled in blocks"),
    *(
        (lambda data, odd=odd: load(Mix([data], [1]), sampler=odd), "sampler cannot be used with a Mix")
        for odd in ([1], drawn)
    ),
    *(
        (lambda _, odd=odd: Mix([odd], [1]), "cannot be mixed: it has no number of samples. Pass what")
        for odd in (5, None, Dataset())
    ),
    *(
        (lambda data, odd=odd: Mix([data], [1]).locate(odd), "no tensor of whole numbers. Pass `torch.as_tensor")
        for odd in (np.array([0]), [0], torch.tensor([0.5]), torch.tensor([True]))
    ),
    (lambda _: Mix([], []), "no datasets to mix"),
    (lambda data: Mix([data, data], {"a": 1, "b": 2}), "2 without names and 'a', 'b'.*two lists .*, or two dicts"),
    (lambda data: Mix({"a": data}, {"b": 1}), "'a' and 'b'"),
    (lambda data: Mix([data], ["much"]), r"weights is \['much'\], which are no numbers"),
    (lambda data: Mix([data], [1], samples="half"), "samples is 'half'.*first_exhausted"),
    (lambda data: Mix([data], [1], samples=-5), "samples is -5"),
    (lambda data: TokenBudget(data, "image", 9), "all samples of the field 'image' have the shape"),
    (lambda data: TokenBudget(data, "x", 9), "the dataset has no field 'x'"),
    (lambda data: TokenBudget(data, "points", 0), "max_tokens is 0"),
    (lambda data: TokenBudget(data, "points", 900, window=0), "window is 0"),
    (lambda data: TokenBudget(data, "points", 900, shuffle="some"), "shuffle is 'some'"),
    (lambda data: TokenBudget(data, "points", 900, seed=-1), "seed is -1"),
    (lambda data: TokenBudget(data, "points", 900).set_epoch(-1), "epoch is -1"),
    (lambda data: TokenBudget(Windows(data, 3), "points", 900), "'points'"),
    (
        lambda data: load(data, batch_sampler=TokenBudget(data.select([1]), "points", 9)),
        "was made of 1 sample.* has 143",
    ),
    (lambda data: LengthBuckets(data, "points", 0), "batch_size is 0"),
    (lambda data: LengthBuckets(Mix([data], [1]), "points", 4), "a Mix has its own order"),
]


@pytest.mark.parametrize(("call", "message"), CALLS, ids=lambda one: one if isinstance(one, str) else "")
def test_calls(rich, call, message):
    with pytest.raises(OptionError, match=message):
        call(ShardDataset(rich))
