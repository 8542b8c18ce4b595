"""Properties of torch's loader that people rely on."""

import inspect
import re

import pytest
import torch
from torch.utils.data import Subset

import gdsload
from gdsload import DatasetNotFoundError, OptionError, ShardDataset
from tests.loader.taking import begin, firsts


class TestOrder:
    def test_no_shuffle_is_no_shuffle(self, load, plain):
        assert firsts(load(plain, 100, None)) == firsts(load(plain, 100, False))
        assert load(plain, 100, None, sampler=range(10)).order_options.shuffle == "sampler"

    def test_a_generator_gives_its_seed(self, load, plain):
        generator = torch.Generator().manual_seed(17)
        torch.rand(5, generator=generator)
        loader = load(plain, 100, "full", generator=generator)
        assert loader.seed == 17
        assert firsts(loader) == firsts(load(plain, 100, "full", seed=17))
        assert load(plain, shuffle=True, generator=torch.Generator()).seed == torch.Generator().initial_seed()


def test_its_iterator_has_the_length_of_its_own_epoch(load, rich):
    """Batches by length are not equally many in all epochs."""
    budget = gdsload.TokenBudget(rich, "points", max_tokens=5, window=30, seed=1)
    loader, lengths, came = load(rich, batch_sampler=budget, ragged="offsets"), [], []
    for _ in range(6):
        iterator = begin(loader)
        lengths.append(len(iterator))
        came.append(1 + len(list(iterator)))
    assert lengths == came
    assert len(set(came)) > 1


class TestText:
    def test_its_lines(self, load, plain):
        title, *lines = repr(load(plain, 8, "full", seed=3)).splitlines()
        assert title.endswith(f"ShardDataset('{plain}', 1000 samples)")
        assert [line[:11].strip() for line in lines] == ["options", "order", "device", "backend", "memory", "later"]

    def test_options_are_those_that_differ_from_the_defaults(self, load, plain):
        def given(**options):
            text = repr(load(plain, 1, memory=None, **options))
            return re.search(r"  options  ((?:.|\n {11})*)\n", text)[1].replace("device='cpu'", "").strip(", ")

        defaults = {name: one.default for name, one in inspect.signature(gdsload.DataLoader).parameters.items()}
        for name in ("dataset", "batch_size", "device", "unneeded", "memory"):
            del defaults[name]
        assert given(**defaults) == ""
        for option, said in {
            "sampler": (list(range(1000)), "[0, 1, 2, 3, 4, 5, ...]"),
            "drop_last": (True, "True"),
            "as_tuple": (("x",), "('x',)"),
            "ragged": ("offsets", "'offsets'"),
            "ahead": (False, "False"),
            "transform": (dict, "dict"),
            "device_transform": ([dict, torch.nn.Sequential()], "[dict, Sequential]"),
            "tail": ("pad", "'pad'"),
            "seed": (None, "None"),
            "verify": ("all", "Verify(stored='all', on_corrupt='raise')"),
        }.items():
            value, shown = said if isinstance(said, tuple) else (said, said)
            assert given(**{option: value}) == f"{option}={shown}"

    def test_nothing_is_longer_than_a_line(self, load, plain):
        loader = load(plain, 8, True, fields=["x"], transform=lambda batch: batch, sample_transform=[dict] * 40)
        list(loader)
        lines = repr(loader).splitlines()
        assert max(map(len, lines[1:])) <= 100
        assert " ".join(str(loader.stats).split()) in " ".join(" ".join(lines).split())

    def test_notebooks_get_tables_in_which_nothing_is_markup(self, tmp_path, load):
        evil = "<script>x\x1b[31m</script>"
        with gdsload.ShardWriter(
            tmp_path / "<b>", {evil: "int64"}, metadata={"classes": {evil: [evil, "b"]}}
        ) as writer:
            writer.write({evil: 1})
        dataset = gdsload.ShardDataset(tmp_path / "<b>")
        loader = load(dataset, 1, transform=lambda batch: batch)
        for one in (dataset, loader):
            elements = set(re.findall(r"<(\w+)", one._repr_html_()))
            assert (
                {"table", "td"} <= elements <= {"div", "b", "code", "br", "table", "thead", "tbody", "tr", "th", "td"}
            )
            assert "\x1b" not in repr(one) + one._repr_html_()
        assert "('<b>')\n  1 sample, 8 KiB in 1 shard\n  field  " in repr(dataset).replace(str(tmp_path) + "/", "")

    def test_parts_of_datasets_say_of_what(self, load, plain):
        dataset = ShardDataset(plain)
        part, both = Subset(dataset.select([1, 2, 3]), [0, 2]), dataset.select(range(5)) + dataset
        assert "DataLoader of 2 samples of 3 samples of ShardDataset(" in repr(load(part))
        assert "DataLoader of ConcatDataset([5 samples of ShardDataset(" in repr(load(both))

    def test_it_is_an_annotation(self):
        assert gdsload.DataLoader[dict].__origin__ is gdsload.DataLoader


class TestPlaces:
    @pytest.mark.parametrize("path", ["s3://bucket/shards", "hf://datasets/a/b", "https://host/x", "S3://b"])
    @pytest.mark.parametrize("open_it", [ShardDataset, gdsload.DataLoader, gdsload.ShardWriter, gdsload.convert])
    def test_addresses_are_refused_with_what_to_do(self, path, open_it, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        given = (path, "out") if open_it is gdsload.convert else (path,)
        with pytest.raises(OptionError, match=f"{path}' is an address.*folder on a local disk.* mounted"):
            open_it(*given)
        assert not list(tmp_path.iterdir())

    def test_files_by_address_are_told_their_path(self, plain):
        with pytest.raises(OptionError, match=f"Pass '{plain}'"):
            gdsload.ShardDataset(f"file://{plain}")
        with pytest.raises(OptionError, match=r"Pass '/a b'\."):
            gdsload.DataLoader("file:///a%20b")

    def test_an_odd_name_is_a_name(self, tmp_path):
        with pytest.raises(DatasetNotFoundError, match="no dataset here"):
            gdsload.ShardDataset(tmp_path / "s3:" / "bucket")

    def test_lists_of_paths(self, plain):
        for given in ([plain, plain], (str(plain),), [gdsload.ShardDataset(plain)]):
            with pytest.raises(OptionError, match=r"ConcatDataset\(\[.*gdsload\.merge\(paths, out\)"):
                gdsload.DataLoader(given)
        with pytest.raises(OptionError, match=r"not \['a'\]\. Several datasets .*ConcatDataset"):
            gdsload.ShardDataset(["a"])
