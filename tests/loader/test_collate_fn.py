"""`collate_fn=`: batches that a function of the user's makes of samples."""

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import gdsload
from gdsload.testing import fingerprint
from tests.loader.taking import numbers


def detection(samples):
    """As loops for detection have it: what differs in size stays in lists."""
    return [sample["x"] for sample in samples], [{"boxes": sample["x"][:1], "text": "t"} for sample in samples]


class TestBatches:
    def test_they_are_those_of_torchs_loader(self, load, rich, order):
        """Of samples as the dataset gives them, in the order of a loader without it."""
        dataset = gdsload.ShardDataset(rich)
        steps = numbers(load(rich, 16, with_index=True, fields=["label"], **order))
        beside = TorchDataLoader(dataset, batch_sampler=steps, collate_fn=list)
        made = load(rich, 16, collate_fn=list, **order)
        assert [fingerprint(batch) for batch in made] == [fingerprint(batch) for batch in beside]

    def test_samples_are_those_that_sample_transform_has_made(self, load, plain):
        loader = load(plain, 7, sample_transform=lambda sample: int(sample["x"][0]), collate_fn=sum, with_index=True)
        sums = list(loader)
        assert sums == [sum(range(low, min(low + 7, 1000))) for low in range(0, 1000, 7)]

    def test_other_transforms_come_after_it(self, load, plain):
        loader = load(
            plain, 10, collate_fn=lambda samples: sum(sample["x"].sum() for sample in samples),
            device_transform=lambda batch: batch + 1, transform=int,
        )  # fmt: skip
        assert next(iter(loader)) == 8 * sum(range(10)) + 1

    def test_an_empty_batch_is_collated_as_torch_does(self, load, plain):
        assert list(load(plain, batch_sampler=[[3, 4], [], [5]], collate_fn=len)) == [2, 0, 1]


@pytest.mark.parametrize("hook", ["collate_fn", "sample_transform"])
def test_stop_iteration_does_not_end_the_epoch(load, plain, hook):
    with pytest.raises(RuntimeError, match=f"{hook} raised StopIteration, which would have ended the epoch"):
        next(iter(load(plain, 100, **{hook: lambda _: next(iter(()))})))


@pytest.mark.cuda
def test_tensors_in_containers_are_copied_to_a_gpu(load, plain):
    wanted = list(load(plain, 100, "full", collate_fn=detection))
    with gdsload.DataLoader(plain, 100, "full", device="cuda", collate_fn=detection) as loader:
        for (images, targets), (same, alike) in zip(loader, wanted, strict=True):
            assert all(image.is_cuda and torch.equal(image.cpu(), one) for image, one in zip(images, same, strict=True))
            for target, one in zip(targets, alike, strict=True):
                assert target["boxes"].is_cuda
                assert fingerprint({**target, "boxes": target["boxes"].cpu()}) == fingerprint(one)
