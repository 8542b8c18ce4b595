"""Options that a loader takes, options that it refuses, and its errors."""

import inspect
import re
import threading
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import gdsload
from gdsload import BudgetError, Field
from gdsload.loader.torch_keywords import WARNED, TorchKeywords
from gdsload.testing import RecordingBackend

IGNORED = {
    "num_workers": 4,
    "pin_memory": True,
    "pin_memory_device": "cuda",
    "prefetch_factor": 2,
    "persistent_workers": True,
    "worker_init_fn": print,
    "multiprocessing_context": "spawn",
    "timeout": 5,
    "in_order": False,
}


@pytest.fixture(autouse=True)
def told_of_nothing():
    WARNED.clear()
    yield
    WARNED.clear()


class TestTorchsKeywords:
    def test_all_of_them_have_an_answer(self):
        own = set(inspect.signature(gdsload.DataLoader.__init__).parameters)
        torchs = set(inspect.signature(TorchDataLoader.__init__).parameters)
        assert set(TorchKeywords.__annotations__) == IGNORED.keys()
        assert torchs - own - IGNORED.keys() == set()

    def test_those_without_a_meaning_here_give_one_warning_at_the_callers_line(self, plain):
        with pytest.warns(UserWarning, match="does not need in_order, .*num_workers, .*timeout") as caught:
            loader = gdsload.DataLoader(plain, device="cpu", **IGNORED)
        assert len(caught) == 1
        assert caught[0].filename == __file__
        assert len(list(loader)) == 1000
        loader.close()

    def test_torchs_own_defaults_ask_for_nothing(self, load, plain):
        defaults = inspect.signature(TorchDataLoader.__init__).parameters
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            load(plain, **{name: defaults[name].default for name in IGNORED if name != "persistent_workers"})
            load(plain, num_workers=0, pin_memory=False, timeout=0, persistent_workers=False, in_order=True)

    def test_what_was_said_once_is_not_said_again(self, load, plain):
        with pytest.warns(UserWarning, match="does not need num_workers, pin_memory:"):
            load(plain, num_workers=2, pin_memory=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            load(plain, num_workers=4)
        with pytest.warns(UserWarning, match="does not need num_workers, timeout:"):
            load(plain, num_workers=4, timeout=3)


class TestSignature:
    def test_it_has_every_option_as_a_keyword_with_its_default_and_type(self):
        parameters = inspect.signature(gdsload.DataLoader).parameters
        first, *options, unneeded = parameters.values()
        assert (first.name, first.default) == ("dataset", inspect.Parameter.empty)
        assert [option.name for option in options[:2]] == ["batch_size", "shuffle"]  # by position, as in torch
        assert {option.kind for option in options[2:]} == {inspect.Parameter.KEYWORD_ONLY}
        assert all(option.default is not inspect.Parameter.empty and option.annotation for option in options)
        assert unneeded.kind is inspect.Parameter.VAR_KEYWORD
        assert (parameters["memory"].default, parameters["cache"].default) == (None, "pagecache")

    def test_the_documentation_names_each_once_in_order(self):
        text = gdsload.DataLoader.__doc__.partition("Args:")[2].partition("Raises:")[0]
        named = re.findall(r"^        (\**\w+): ", text, re.MULTILINE)
        assert [name.lstrip("*") for name in named] == list(inspect.signature(gdsload.DataLoader).parameters)


class TestOrders:
    def test_what_true_chose_and_why_is_shown(self, load, plain, monkeypatch):
        loader = load(plain, 1, True)
        assert loader.order_options.shuffle == "full"
        assert "order    full (shuffle=True and the dataset has 31.25 KiB, at most 1 GiB" in repr(loader)
        assert load(plain, 1, gdsload.BlockShuffle(lanes=5)).order_options.shuffle == "block"
        monkeypatch.setattr("gdsload.order.order_options.FULL_TOTAL_BYTES", 1000)
        loader = load(plain, 1, True)
        assert loader.order_options.shuffle == "block"
        assert "order    block (shuffle=True, samples average 32 B, too small for random reads" in repr(loader)

    def test_windows_that_do_not_fit_the_arena_are_refused_with_both_numbers(self, load, plain):
        options = {"shuffle": gdsload.BlockShuffle(block=10, window=100, lanes=4), "mmap": False}
        with pytest.raises(BudgetError, match=r"the arena is 9.766 KiB.* need 15.62 KiB.*Memory\(arena=16000\)"):
            load(plain, 10, memory=gdsload.Memory(arena=10_000), **options)
        assert len(list(load(plain, 10, memory=gdsload.Memory(arena=16_000), **options))) == 100
        assert len(list(load(plain, 10, memory=gdsload.Memory(arena=10_000), **{**options, "mmap": True}))) == 100
        longer = gdsload.BlockShuffle(block=10, window=10**9, lanes=4)  # than a lane, but no larger
        assert len(list(load(plain, 10, longer, mmap=False, memory=gdsload.Memory(arena=5 * 250 * 32)))) == 100


class TestFields:
    def test_only_these_are_read(self, load, rich, wrap):
        made = wrap(RecordingBackend)
        loader = load(rich, 10, fields=["label", "flag"])
        assert {tuple(batch) for batch in loader} == {("label", "flag")}
        assert sum(extents.total_bytes for extents in made[0].reads) == 143 * 12

    def test_they_come_in_the_schemas_order_once(self, load, rich):
        assert list(next(iter(load(rich, fields=("text", "label", "text"))))) == ["label", "text"]
        assert list(next(iter(load(rich, fields=(name for name in ("flag", "image")))))) == ["image", "flag"]

    def test_a_field_called_index_is_not_hidden(self, load, tmp_path):
        with gdsload.ShardWriter(tmp_path / "set") as writer:
            writer.write_batch({"index": np.arange(5), "x": np.arange(5)})
        assert next(iter(load(tmp_path / "set", 5)))["index"].tolist() == [0, 1, 2, 3, 4]
        assert list(next(iter(load(tmp_path / "set", with_index=True, fields=["x"])))) == ["x", "index"]


class TestDevice:
    def test_none_is_the_cpu_where_there_is_no_accelerator(self, plain):
        if torch.accelerator.is_available():
            pytest.skip("there is one")
        with gdsload.DataLoader(plain) as loader:
            assert loader.device == torch.device("cpu")
            assert next(iter(loader))["x"].device == torch.device("cpu")


class TestShown:
    def test_backend(self, load, plain):
        loader = load(plain, 100)
        assert loader.backend.asked == "auto"
        list(loader)
        assert loader.backend.bytes_by_path == {"host": 32_000}
        assert "host: 32000 bytes" in str(loader.backend)
        assert load(plain, backend="host").backend.asked == "host"

    def test_attributes(self, load, plain):
        loader = load(plain, np.int64(32), drop_last=1, seed=np.uint8(4))
        assert (loader.batch_size, loader.drop_last, loader.seed, loader.epoch) == (32, True, 4, 0)
        assert type(loader.batch_size) is type(loader.seed) is int
        assert len(loader) == 31


class TestEmpty:
    @pytest.fixture
    def empty(self, tmp_path):
        with gdsload.ShardWriter(tmp_path / "empty", {"x": Field("float32", (3,)), "t": "str"}):
            pass
        return tmp_path / "empty"

    @pytest.mark.parametrize("shuffle", [False, True, "full", "block"])
    def test_a_dataset_without_samples_has_no_batches(self, load, empty, shuffle, mmap):
        loader = load(empty, 10, shuffle, mmap=mmap)
        assert len(loader) == 0
        for epoch in range(3):
            assert loader.epoch == epoch
            assert list(loader) == []
        loader.load_state_dict(loader.state_dict())

    def test_one_sample(self, load, tmp_path):
        with gdsload.ShardWriter(tmp_path / "one") as writer:
            writer.write({"x": 5})
        for shuffle in (False, True, "full", "block"):
            assert [batch["x"].tolist() for batch in load(tmp_path / "one", 10, shuffle)] == [[5]]
            assert list(load(tmp_path / "one", 10, shuffle, drop_last=True)) == []


def test_a_tier_that_there_cannot_be_is_refused(plain):
    with pytest.raises(gdsload.BackendUnavailableError, match="cache='vram'"):
        gdsload.DataLoader(plain, device="cpu", cache="vram")
    # The page cache serves the CPU anyway.
    with gdsload.DataLoader(plain, device="cpu", cache="pagecache") as loader:
        assert len(list(loader)) == len(loader)
        assert loader.cache.tiers == {}
        assert "no tier" in str(loader.cache)


def test_so_many_threads_read_as_were_asked_for(load, plain):
    def reading():
        return sum(thread.name.startswith("gdsload-host-") for thread in threading.enumerate())

    before = reading()
    next(iter(load(plain, 64, mmap=False, backend=gdsload.Auto(threads=3))))
    assert reading() - before == 3
