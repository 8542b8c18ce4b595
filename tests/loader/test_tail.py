"""The last global batch if it is not full, and which of its samples count."""

import pytest
import torch

from gdsload.testing import assert_resumes_everywhere
from tests.loader.taking import numbers


def ranks(load, path, batch_size, world_size, **options):
    return [load(path, batch_size, ranks=(rank, world_size), **options) for rank in range(world_size)]


class TestPad:
    def test_it_is_what_torchs_sampler_repeats(self, load, plain):
        world, size = 4, 32
        loaders = ranks(load, plain, size, world, tail="pad", with_index=True)
        mine = [index for loader in loaders for index in numbers(loader)[-1]]
        whole = list(range(1000))
        assert sorted(mine) == sorted((whole + whole)[1000 // (world * size) * world * size :][: world * size])

    @pytest.mark.parametrize(("batch_size", "mmap"), [(63, True), (999, False), (2500, True)])
    def test_it_resumes_at_every_step(self, load, plain, order, mmap, batch_size):
        options = {"tail": "pad", "mmap": mmap, "with_index": True, "with_real": True, **order}
        assert_resumes_everywhere(lambda: load(plain, batch_size, **options))

    def test_what_ranks_gather_is_cut_to_the_samples_that_count(self, load, plain, order):
        """As Accelerate's `gather_for_metrics` does it with the remainder of the loader."""
        loaders = ranks(load, plain, 32, 3, tail="pad", with_index=True, **order)
        seen = []
        for step, batches in enumerate(zip(*loaders, strict=True), 1):
            gathered = torch.cat([batch["index"] for batch in batches])
            last = step == len(loaders[0])
            seen += gathered[: loaders[0].remainder].tolist() if last else gathered.tolist()
        assert loaders[0].remainder == 1000 % 96
        assert sorted(seen) == list(range(1000))

    def test_transforms_draw_anew_for_what_is_repeated(self, load, plain):
        def drawn(batch, generator):
            return {"drawn": torch.randint(2**60, (1,), generator=generator)}

        loaders = ranks(load, plain, 300, 4, tail="pad", device_transform=drawn)
        assert len({batch["drawn"].item() for loader in loaders for batch in loader}) == 4


class TestWhatCounts:
    @pytest.mark.parametrize("tail", ["share", "pad", "drop"])
    def test_the_loader_says_it_for_the_batch_handed_out_last(self, load, plain, tail):
        for loader in ranks(load, plain, 33, 7, tail=tail, with_real=True):
            assert loader.real_samples is None
            for batch in loader:
                assert loader.real_samples == batch["real"].sum()
                assert batch["real"].dtype == torch.bool
                assert batch["real"].shape == batch["x"].shape[:1]
            assert loader.real_samples == batch["real"].sum()  # also when it is over

    def test_remainder(self, load, plain):
        assert [load(plain, 30, tail=tail).remainder for tail in ("share", "pad", "drop")] == [10, 10, 0]
        assert [load(plain, 25, tail=tail).remainder for tail in ("share", "pad", "drop")] == [0, 0, 0]
        assert load(plain, 30, sampler=range(95)).remainder == 0

    def test_of_a_sampler_all_do(self, load, plain):
        loader = load(plain, 30, sampler=range(95), with_real=True)
        assert [batch["real"].all().item() for batch in loader] == [True] * 4
        assert loader.real_samples is None

    def test_transform_sees_it(self, load, plain):
        loader = load(plain, 30, tail="pad", with_real=True, transform=lambda batch: int(batch["real"].sum()))
        assert list(loader) == [30] * 33 + [10]


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "tail"),
        [
            ({}, "share"), ({"drop_last": False}, "share"), ({"drop_last": True}, "drop"), ({"tail": "drop"}, "drop"),
            ({"drop_last": True, "tail": "drop"}, "drop"), ({"tail": "pad"}, "pad"), ({"tail": "share"}, "share"),
        ],
        ids=str,
    )  # fmt: skip
    def test_drop_last_is_a_tail(self, load, plain, options, tail):
        loader = load(plain, 30, **options)
        assert (loader.tail, loader.drop_last) == (tail, tail == "drop")
        assert loader.state_dict()["tail"] == tail

    def test_with_a_sampler_drop_is_its_own_last_batch(self, load, plain):
        assert len(list(load(plain, 10, sampler=range(25), tail="drop"))) == 2
