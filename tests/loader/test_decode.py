"""decode=: images of a dataset, from their bytes to the batch."""

import io
import os

import numpy as np
import pytest
import torch
from PIL import Image

from gdsload import DataLoader, FormatError, Memory, OptionError, ShardDataset
from gdsload.testing import assert_resumes_everywhere
from gdsload.transforms import DecodeImage
from tests.loader.pictures import encoded, written

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RANDOM = DecodeImage(size=20, crop="random-resized", flip=0.5)
COUNT = 60


def pixels(data):
    with Image.open(io.BytesIO(data)) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


@pytest.fixture(scope="module")
def images():
    return [encoded(number) for number in range(COUNT)]


@pytest.fixture(scope="module")
def path(images, tmp_path_factory):
    return written(tmp_path_factory.mktemp("decode") / "d", images)


def loader(path, options=RANDOM, batch_size=8, **given):
    return DataLoader(path, batch_size, decode={"image": options}, **{"device": "cpu", **given})


def test_without_it_batches_samples_and_columns_have_the_bytes(path, images, shuffle):
    dataset, seen = ShardDataset(path), []
    with DataLoader(dataset, 7, shuffle, device="cpu") as batches:
        for batch in batches:
            assert batch["image"] == [images[label] for label in batch["label"].tolist()]
            seen += batch["label"].tolist()
    assert sorted(seen) == [*range(COUNT)]
    assert [dataset[number]["image"] for number in range(COUNT)] == dataset.column("image") == images
    assert dataset.lengths("image").tolist() == [*map(len, images)]
    assert dataset.verify(deep=True).shards == len(dataset.shards)


def by_label(batches, field="image"):
    """Each sample's image, or another field of it, by its label."""
    return {
        label: value.clone()
        for batch in batches
        for label, value in zip(batch["label"].tolist(), batch[field], strict=True)
    }


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[label], other[label]) for label in one)


@pytest.mark.parametrize("kind", ["image", "bytes"])
def test_images_keep_their_size(images, tmp_path, shuffle, kind):
    with loader(written(tmp_path / "d", images, kind), DecodeImage(), shuffle=shuffle) as batches:
        found = by_label(batches)
    assert sorted(found) == [*range(COUNT)]
    for label, image in found.items():
        assert torch.equal(image, pixels(images[label]))
        assert image.is_contiguous()


def test_batches_of_one_size_are_tensors(path):
    for options, dtype in [(RANDOM, torch.uint8), (DecodeImage(size=(5, 7), mean=MEAN, std=STD), torch.float32)]:
        with loader(path, options, drop_last=True) as batches:
            for batch in batches:
                assert batch["image"].shape == (8, 3, *options.rows_and_columns)
                assert batch["image"].dtype == dtype
                assert batch["image"].is_contiguous()


def test_images_that_keep_their_size_may_have_channels_last(path, images):
    with loader(path, DecodeImage(channels_last=True, flip=0.5)) as batches:
        found = by_label(batches)
    whole = {label: pixels(images[label]) for label in range(COUNT)}
    assert all(found[label].permute(1, 2, 0).is_contiguous() for label in found)
    flipped = [label for label in found if not torch.equal(found[label], whole[label])]
    assert all(torch.equal(found[label], whole[label].flip(-1)) for label in flipped)
    assert 15 < len(flipped) < 45


def test_a_sample_is_cut_out_the_same_by_any_number_of_processors(path):
    before = os.sched_getaffinity(0)
    found = []
    for processors in ({min(before)}, before):
        os.sched_setaffinity(0, processors)
        try:
            with loader(path, shuffle="full", memory=Memory(prefetch=1 if found else None)) as batches:
                found.append(by_label(batches))
        finally:
            os.sched_setaffinity(0, before)
    assert same(*found)


def test_ranks_together_make_what_one_makes(path, shuffle):
    with loader(path, shuffle=shuffle, batch_size=12) as alone:
        whole = by_label(alone)
    found = {}
    for rank in range(3):
        with loader(path, shuffle=shuffle, batch_size=4, ranks=(rank, 3)) as batches:
            found |= by_label(batches)
    assert same(found, whole)


@pytest.mark.parametrize("shuffle", ["full", "block"])
def test_a_resumed_epoch_goes_on_as_it_would_have(path, shuffle):
    assert_resumes_everywhere(lambda: loader(path, shuffle=shuffle))


def test_epochs_and_seeds_draw_anew(path):
    with loader(path) as batches:
        first, second = by_label(batches), by_label(batches)
    with loader(path, seed=1) as others:
        third = by_label(others)
    assert not same(first, second)
    assert not same(first, third)


def test_a_sampler_draws_by_step(path):
    chosen = [5, 5, 5, 9] * 4
    runs = []
    for _ in range(2):
        with loader(path, DecodeImage(size=8, crop="random-resized"), 4, sampler=chosen) as batches:
            runs.append([batch["image"].clone() for batch in batches])
    assert all(map(torch.equal, *runs))
    assert not torch.equal(runs[0][0][0], runs[0][0][1])  # the same image, cut out again
    assert not torch.equal(runs[0][0], runs[0][1])


@pytest.fixture
def bad(images, tmp_path):
    """Some are cut short, and one is of a kind that is not decoded."""
    given = [data[: len(data) * 2 // 3] if number in (21, 22) else data for number, data in enumerate(images)]
    return written(tmp_path / "d", [*given[:50], b"GIF89a", *given[51:]], "bytes")


def test_an_image_that_cannot_be_decoded_is_named(bad):
    dataset = ShardDataset(bad)
    with loader(bad) as batches:
        iterator = iter(batches)
        assert [next(iterator)["label"].tolist() for _ in range(2)] == [[*range(8)], [*range(8, 16)]]
        with pytest.raises(FormatError, match=r"image of sample 21 in field 'image' cannot be decoded") as caught:
            next(iterator)
    assert caught.value.samples == ((21, 23),)
    begin = 0
    for shard in dataset.shards:
        if begin <= 21 < begin + shard.samples:
            assert caught.value.file.endswith(shard.file)
        begin += shard.samples


def test_it_is_named_as_the_users_dataset_counts(bad):
    half = torch.utils.data.Subset(ShardDataset(bad), [*range(30, 10, -1)])
    with (
        loader(half, batch_size=20, shuffle="full") as batches,
        pytest.raises(FormatError, match="image of sample [89] in field") as caught,
    ):
        next(iter(batches))
    assert caught.value.samples == ((8, 10),)


@pytest.mark.parametrize("options", [RANDOM, DecodeImage()], ids=["one size", "any size"])
def test_or_it_is_zeros(bad, images, options):
    options = DecodeImage(**{**vars(options), "on_error": "zeros"})
    with loader(bad, options, shuffle="full") as batches, loader(bad, options, shuffle="full") as again:
        kept = [*batches]
        found = by_label(kept)
        assert same(found, by_label(again))
    mask = by_label(kept, "image.decoded")
    assert sorted(found) == [*range(COUNT)]
    assert [label for label in range(COUNT) if not mask[label]] == [21, 22, 50]
    assert not any(found[label].any() for label in (21, 22, 50))
    assert all(found[label].any() for label in range(COUNT) if mask[label])


def test_a_bomb_is_not_decoded(path):
    with (
        loader(path, DecodeImage(size=4, max_pixels=100)) as batches,
        pytest.raises(FormatError, match=r"it says \d+ × \d+ pixels, more than the 100 of max_pixels"),
    ):
        next(iter(batches))


def test_fields_that_are_not_read_are_not_decoded(path):
    with loader(path, fields=["label"]) as batches:
        assert {*next(iter(batches))} == {"label"}
    with pytest.raises(OptionError, match="reuse_buffers needs fields of a fixed shape, but 'image'"):
        loader(path, DecodeImage(), reuse_buffers=True)
