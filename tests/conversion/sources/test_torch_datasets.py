"""torch datasets as a source."""

import json
import pickle
from collections import namedtuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset

import gdsload
from gdsload.conversion.sources.torch_datasets import TorchSource
from gdsload.errors import FormatError, GdsloadError, OptionError
from tests.conversion.reading import items_of

Pair = namedtuple("Pair", "left right")  # noqa: PYI024 -- as users write it


class Squares(Dataset):
    def __init__(self, count=2500):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == 7:
            raise ValueError("it is 7")
        return torch.tensor(index), index**2


class Stream(IterableDataset):
    def __iter__(self):
        yield {"n": 1}
        yield {"n": 2}
        raise ValueError("the stream broke")


def make_squares():
    return Squares(3)


squares = Squares(3)


def test_runs_of_samples_and_a_bad_one(tmp_path):
    source = pickle.loads(pickle.dumps(TorchSource(Squares(), names=("n", "square"))))
    assert [part.samples for part in source.parts(1)] == [1024, 1024, 452]
    items = items_of(source)
    assert items[1500].make() == {"n": torch.tensor(1500), "square": 1500**2}
    assert items[1500].key == "sample 1500"
    with pytest.raises(ValueError, match="it is 7"):
        items[7].make()
    with pytest.raises(OptionError, match="2 values, but names has 1"):
        items_of(TorchSource(Squares(), names=["n"]))[0].make()
    with pytest.raises(FormatError, match="not one sample"):
        TorchSource(Squares(0)).parts(1)
    for names in ("ab", ["a", "a"]):
        with pytest.raises(OptionError, match="no list of different names"):
            TorchSource(Squares(), names=names)


@pytest.mark.parametrize(
    ("sample", "names", "expected"),
    [
        ((1, "a"), None, {"0": 1, "1": "a"}),
        ([1, "a"], ("x", "y"), {"x": 1, "y": "a"}),
        (Pair(1, 2), None, {"left": 1, "right": 2}),
        ({"x": 1, 5: 2}, None, {"x": 1, "5": 2}),
        (3, None, {"0": 3}),
    ],
)
def test_shapes_of_samples(sample, names, expected):
    assert items_of(TorchSource([sample], names=names))[0].make() == expected


def nested():
    return [{"x": n, "meta": {"id": n, "in": {"name": f"n{n}"}}, 5: {6: n}} for n in range(3)]


def own_flat(sample):
    return {"id": sample["meta"]["id"], "more": {"twice": 2 * sample["x"]}}


def test_what_is_in_mappings_in_samples_are_fields(converted):
    assert list(converted(nested).schema) == ["x", "meta.id", "meta.in.name", "5.6"]
    assert converted(nested)[2] == {"x": 2, "meta.id": 2, "meta.in.name": "n2", "5.6": 2}
    assert converted(nested, fields=["meta.in.name", "x"])[1] == {"meta.in.name": "n1", "x": 1}
    assert converted(nested, map=f"{__name__}:own_flat", fields=["meta", "x"])[2] == {"id": 2, "more.twice": 4}
    assert converted(nested, casts={"meta.id": "int8"}).schema["meta.id"].dtype.name == "int8"


@pytest.mark.parametrize(
    ("sample", "match"),
    [
        ({"x": None}, r"'None' is no number.*\. Write what stands for None"),
        ({"x": {"y": object()}}, r"field 'x\.y': .*and of an object a field for each part"),
        ({"x": {"y": 1}, "x.y": 2}, r"field 'x\.y': a sample has it twice\. Rename one"),
    ],
)
def test_what_no_field_holds(tmp_path, sample, match):
    with pytest.raises(GdsloadError, match=match):
        gdsload.convert([sample], tmp_path / "d", workers=1)


def test_by_name_and_what_it_says_of_itself():
    for name in ("squares", "make_squares"):
        source = pickle.loads(pickle.dumps(TorchSource(f"{__name__}:{name}")))
        described = source.describe()
        assert (len(items_of(source)), described["dataset"], described["samples"]) == (3, f"{__name__}:{name}", 3)
    one = TorchSource(Squares()).describe()
    assert json.loads(json.dumps(one)) == one == TorchSource(Squares()).describe()
    assert one not in (TorchSource(Squares(5)).describe(), TorchSource(Squares(), names=["a", "b"]).describe())


def test_a_stream_is_one_part_and_its_failure_is_not_a_samples():
    source = TorchSource(Stream())
    (part,) = source.parts(1)
    items = source.read(part)
    assert [next(items).make(), next(items).make()] == [{"n": 1}, {"n": 2}]
    with pytest.raises(FormatError, match="failed after 2 samples: ValueError: the stream broke"):
        next(items)


@pytest.mark.parametrize("spec", ["no.such.module:x", "os:no_such_name", "os", ":", "os:getcwd", "os.path:sep", 7])
def test_no_dataset(spec):
    with pytest.raises(OptionError, match="cannot be found|no dataset"):
        TorchSource(spec).parts(1)


def numbered():
    for number in range(5):
        yield {"n": number}


def test_a_generator_function_is_called_again_and_a_generator_refused(tmp_path):
    report = gdsload.convert(numbered, tmp_path / "out", workers=1)
    assert report.samples == 5
    assert [int(sample["n"]) for sample in gdsload.ShardDataset(tmp_path / "out")] == list(range(5))
    with pytest.raises(OptionError, match="generator, no dataset. .*of an iterator the function that makes it"):
        gdsload.convert(numbered(), tmp_path / "again")


@pytest.mark.parametrize("loader", [torch.utils.data.DataLoader, gdsload.DataLoader])
def test_loaders_are_refused(tmp_path, loader):
    with gdsload.ShardWriter(tmp_path / "d") as writer:
        writer.write({"x": 1})
    with pytest.raises(OptionError, match="DataLoader, no dataset. .*Of a loader pass its dataset"):
        gdsload.convert(loader(gdsload.ShardDataset(tmp_path / "d")), tmp_path / "out")


@pytest.mark.parametrize("values", [0.1, [0.1, 2], (1, 1700000000.5), 1700000000.5])
def test_python_floats_are_float64_as_torchs_loader_has_them(converted, values):
    assert converted([{"t": values}] * 3)[1]["t"].tolist() == (list(values) if isinstance(values, tuple) else values)


def test_a_late_python_float_is_refused_or_rounded_by_a_cast(tmp_path, converted):
    late = [{"t": np.float32(n) if n < 90 else 0.1} for n in range(100)]
    with pytest.raises(GdsloadError, match="it is float64, but the schema says float32"):
        gdsload.convert(late, tmp_path / "d", workers=1)
    assert converted(late, casts={"t": "float32"}).column("t")[95] == torch.tensor(0.1)


def picture(mode, colours=()):
    image = Image.new(mode, (4, 3), 1)
    if colours:
        image.putpalette(colours)
    return image


def test_indices_of_a_palette_are_taken(converted):
    image = picture("P", [0, 0, 0, 255, 0, 0])
    for source in ([{"image": image}] * 2, {"image": [image] * 2}):
        assert converted(source)[0]["image"].unique().tolist() == [1]


def test_the_way_out_of_different_channels_is_one_that_a_dataset_has(tmp_path):
    with pytest.raises(GdsloadError, match=r"say what channels they get: image.convert\('RGB'\) of Pillow, say"):
        gdsload.convert([{"image": picture("L")}, {"image": picture("RGB")}], tmp_path / "d", workers=1)
