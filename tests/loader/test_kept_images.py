"""cache="ram": images are decoded once, and batches are those of a loader that decodes them every time."""

from collections import Counter
from functools import partial

import pytest
import torch

from gdsload import BlockShuffle, DataLoader, FormatError, Memory, OptionError
from gdsload.engine.images import decode
from gdsload.loader import resources
from gdsload.testing import assert_resumes_everywhere
from gdsload.transforms import DecodeImage
from tests.loader import pictures

COUNT = 45
BAD = 7
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
OPTIONS = {
    "center": DecodeImage(size=12, crop="center", flip=0.5),
    "normalized": DecodeImage(size=(5, 7), flip=0.5, mean=MEAN, std=STD, dtype=torch.bfloat16, channels_last=True),
    "any size": DecodeImage(flip=0.5),
    "any size, channels last": DecodeImage(flip=0.5, channels_last=True, dtype=torch.float16),
}
RANDOM = DecodeImage(size=9, crop="random-resized", flip=0.5)
encoded = partial(pictures.encoded, smallest=14, largest=40)


def written(path, images, kind="image"):
    return pictures.written(path, images, kind, other=[encoded(number + 100) for number in range(len(images))])


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return written(tmp_path_factory.mktemp("kept") / "d", [encoded(number) for number in range(COUNT)])


@pytest.fixture
def decodes(monkeypatch):
    """How often each image is decoded, by its bytes."""
    found, plain = Counter(), decode.decode_image

    def counted(data, *others):
        found[bytes(data)] += 1
        return plain(data, *others)

    monkeypatch.setattr(decode, "decode_image", counted)
    return found


def loader(path, wanted, batch_size=8, **given):
    wanted = wanted if isinstance(wanted, dict) else {"image": wanted}
    order = {} if "sampler" in given else {"seed": 5, "shuffle": "full"}
    given = {"fields": ["image", "label"], "device": "cpu", **order, **given}
    return DataLoader(path, batch_size, decode=wanted, **given)


def same(one, other):
    return (
        one.keys() == other.keys()
        and one["label"].tolist() == other["label"].tolist()
        and all(
            torch.equal(mine, yours) and mine.stride() == yours.stride() and mine.dtype == yours.dtype
            for name in one
            for mine, yours in zip(one[name], other[name], strict=True)
        )
    )


BLOCKS = {"shuffle": BlockShuffle(block=4, window=16, lanes=2), "mmap": False}


@pytest.mark.parametrize(
    ("kind", "budget", "given"),
    [*((kind, budget, {}) for kind in OPTIONS for budget in (None, 9000)), ("center", 0, {}), ("center", 9000, BLOCKS)],
)
def test_epochs_are_those_of_a_loader_that_keeps_nothing(path, decodes, kind, budget, given):
    wanted, epochs = OPTIONS[kind], 2
    with loader(path, wanted, cache="none", **given) as plain:
        expected = [[*plain] for _ in range(epochs)]
    decodes.clear()
    with loader(path, wanted, cache="ram", memory=Memory(ram=budget), **given) as kept:
        for epoch in expected:
            for batch, other in zip(kept, epoch, strict=True):
                assert same(batch, other)
                for image in batch["image"]:
                    image.zero_()  # a user's batch is the user's
        tier = kept.cache.tiers["decoded"]
    again = sum(decodes.values()) - COUNT
    assert again == (epochs - 1) * (COUNT - tier.images)
    assert set(decodes.values()) <= {1, epochs}
    assert tier.images == COUNT if budget is None else (tier.held_bytes <= budget and tier.images < COUNT)
    assert bool(tier.images) is (budget != 0)
    assert bool(tier.hit_bytes) is bool(tier.images)


def test_a_resumed_epoch_goes_on_as_it_would_have(path):
    assert_resumes_everywhere(lambda: loader(path, OPTIONS["center"], cache="ram"))


def test_a_sample_that_comes_again_and_again_is_kept_once(path, decodes):
    numbers = [3, 3, 1, 3, 2, 1, 1, 3]
    with loader(path, OPTIONS["center"], 4, sampler=numbers * 3, cache="ram") as kept:
        batches = [*kept]
        assert kept.cache.tiers["decoded"].images == 3
    with loader(path, OPTIONS["center"], 4, sampler=numbers * 3) as plain:
        assert all(map(same, batches, plain))


def test_what_is_cut_out_at_random_is_decoded_every_time(path, decodes):
    both = {"image": OPTIONS["center"], "other": RANDOM}
    fields = ["other", "image", "label"]
    with loader(path, both, fields=fields) as plain, loader(path, both, fields=fields, cache="ram") as kept:
        for _ in range(2):
            assert all(map(same, kept, plain))
    counts = Counter(decodes[encoded(number)] for number in range(COUNT))
    others = Counter(decodes[encoded(number + 100)] for number in range(COUNT))
    assert (counts, others) == ({3: COUNT}, {4: COUNT})  # one of them decodes twice, the other once


@pytest.mark.parametrize("kind", ["center", "any size, channels last"])
def test_an_image_that_cannot_be_decoded_is_not_kept(tmp_path, kind):
    images = [b"none" if number == BAD else encoded(number) for number in range(20)]
    path = written(tmp_path / "d", images, "bytes")
    with loader(path, OPTIONS[kind], cache="ram") as raising:
        for _ in range(2):
            with pytest.raises(FormatError, match=f"image of sample {BAD} in field 'image' cannot be decoded"):
                list(raising)
    zeros = DecodeImage(**{**vars(OPTIONS[kind]), "on_error": "zeros"})
    with loader(path, zeros) as plain, loader(path, zeros, cache="ram") as kept:
        for _ in range(2):
            for batch, other in zip(kept, plain, strict=True):
                assert same(batch, other)
                assert batch["image.decoded"].tolist() == [label != BAD for label in batch["label"].tolist()]
        assert kept.cache.tiers["decoded"].images == 19


def test_an_image_without_room_leaves_the_room_to_smaller_ones(tmp_path):
    sides = [100, 20, 20, 20]
    images = [pictures.encoded(side, smallest=side, largest=side + 1) for side in sides]
    path = written(tmp_path / "d", images)
    with loader(path, DecodeImage(), 1, sampler=[*range(4)], cache="ram", memory=Memory(ram=3000)) as kept:
        assert [tuple(image.shape) for batch in kept for image in batch["image"]] == [(3, side, side) for side in sides]
        assert kept.cache.tiers["decoded"].images == 2


def test_it_says_what_it_keeps(path):
    with loader(path, OPTIONS["center"], cache="ram", memory=Memory(ram="1MiB")) as kept:
        assert str(kept.cache).endswith("no tier is in use")
        list(kept)
        list(kept)
        held = COUNT * 3 * 12 * 12
        assert f"decoded: {COUNT} images" in str(kept.cache)
        tier = kept.cache.tiers["decoded"]
        assert (tier.budget_bytes, tier.held_bytes, tier.hit_bytes, tier.trouble) == (2**20, held, held, "")
    with loader(path, OPTIONS["center"], cache="ram", memory=Memory(ram=1000)) as kept:
        list(kept)
        assert "the budget of 1000 B is used up" in str(kept.cache)


def test_ranks_of_a_host_share_its_memory(path, monkeypatch):
    monkeypatch.setattr(resources, "default_register_bytes", lambda: 4000)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with loader(path, OPTIONS["center"], cache="ram") as kept:
        next(iter(kept))
        assert kept.cache.tiers["decoded"].budget_bytes == 1000


@pytest.mark.parametrize("wanted", [{"image": RANDOM}, {}])
def test_there_has_to_be_something_to_keep(path, wanted):
    with pytest.raises(OptionError, match="keeps images that are decoded the same in every epoch, and there are none"):
        loader(path, wanted, cache="ram")
