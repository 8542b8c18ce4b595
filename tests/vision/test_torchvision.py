"""torchvision's transforms: sample by sample, and a warning where they get whole batches; and ours beside them.

Its own compiled part is not needed. Where the wheel's does not load, being made for another build of torch, its
operators are declared, which is all that importing the rest takes.
"""

import functools
import sys
import warnings

import pytest
import torch

import gdsload

OPERATORS = ("nms", "qnms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")


def transforms():
    try:
        from torchvision.transforms import v2
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        transforms.library = torch.library.Library("torchvision", "DEF")
        for name in OPERATORS:
            for suffix in ("", "_backward"):
                transforms.library.define(f"{'_' if suffix else ''}{name}{suffix}(Tensor a) -> Tensor")
        from torchvision.transforms import v2
    return v2


v2 = transforms()
AUGMENT = v2.Compose([v2.RandomResizedCrop(16), v2.RandomHorizontalFlip(), v2.ColorJitter(0.4, 0.4, 0.4, 0.1)])


@pytest.fixture
def images(tmp_path):
    """40 images and their numbers."""
    with gdsload.ShardWriter(tmp_path / "d") as writer:
        pixels = torch.randint(0, 256, (40, 3, 24, 20), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
        writer.write_batch({"image": pixels, "label": torch.arange(40)})
    return tmp_path / "d"


def augment(sample):
    return {**sample, "image": AUGMENT(sample["image"])}


class TestSampleBySample:
    def run(self, images, workers):
        transform = gdsload.PerSample(augment, workers=workers)
        with gdsload.DataLoader(images, 8, shuffle="full", device="cpu", sample_transform=transform) as loader:
            return {
                label: image
                for batch in loader
                for label, image in zip(batch["label"].tolist(), batch["image"], strict=True)
            }

    def test_each_image_is_drawn_for_by_itself_and_the_same_whatever_does_it(self, images):
        before = torch.get_rng_state()
        found = [self.run(images, 1), self.run(images, 3)]
        assert torch.equal(torch.get_rng_state(), before)
        assert all(torch.equal(found[0][label], found[1][label]) for label in range(40))
        assert not any(torch.equal(found[0][label], found[0][0]) for label in range(1, 40))

    def test_they_are_torchvisions_own_with_the_samples_seed(self, images):
        dataset = gdsload.ShardDataset(images)
        loader = gdsload.DataLoader(
            images, 8, device="cpu", sample_transform=lambda sample, generator: (
                augment(sample)["image"], sample["label"], str(generator.initial_seed())
            ),
        )  # fmt: skip
        with loader, torch.random.fork_rng():
            for made in loader:
                for image, label, seed in zip(*made, strict=True):
                    torch.manual_seed(int(seed))
                    assert torch.equal(image, AUGMENT(dataset[int(label)]["image"]))


FLIP = v2.RandomHorizontalFlip()


class Sub(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(FLIP)


class TestWarning:
    @pytest.mark.parametrize(
        "given",
        [
            FLIP, AUGMENT, [len, FLIP], v2.Compose([v2.Identity(), v2.RandomApply([v2.Identity()])]), Sub(),
            functools.partial(lambda flip, b: flip(b), FLIP), gdsload.transforms.Compose([FLIP]), v2.AutoAugment(),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("option", ["transform", "device_transform"])
    def test_where_a_random_transform_gets_whole_batches(self, images, given, option):
        if option == "transform" and isinstance(given, list):
            given = given[1]
        match = f"^`{option}` gets whole batches.*draws once.*`sample_transform`"
        with pytest.warns(UserWarning, match=match) as caught:
            gdsload.DataLoader(images, device="cpu", **{option: given})
        assert len(caught) == 1
        assert caught[0].filename == __file__

    @pytest.mark.parametrize(
        "given",
        [
            v2.CenterCrop(8), v2.Compose([v2.Normalize([0.5], [0.5])]), v2.MixUp(num_classes=40), len,
            lambda batch: torch.stack([FLIP(image) for image in batch["image"]]), gdsload.transforms.RandomFlip("image"),
        ],
    )  # fmt: skip
    def test_none_where_nothing_is_wrong(self, images, given):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            gdsload.DataLoader(images, device="cpu", transform=given)
            gdsload.DataLoader(images, device="cpu", sample_transform=AUGMENT)


class TestOurs:
    def test_resized_crops_are_torchvisions(self):
        value = torch.randint(0, 256, (6, 3, 50, 40), dtype=torch.uint8)
        crop = gdsload.transforms.RandomResizedCrop("x", (24, 20))
        boxes = crop.draw(value, torch.Generator().manual_seed(1)).tolist()
        found = crop({"x": value}, torch.Generator().manual_seed(1))["x"]
        for image, box, made in zip(value, boxes, found, strict=True):
            assert torch.equal(made, v2.functional.resized_crop(image, *box, [24, 20], antialias=True))

    @pytest.mark.parametrize("channels", [3, 1])
    def test_color_jitter_is_torchvisions(self, channels):
        value = torch.rand(6, channels, 9, 8)
        jitter = gdsload.transforms.ColorJitter("x", 0.4, 0.4, 0.4, 0.2)
        factors, order = jitter.draw(value, torch.Generator().manual_seed(1))
        found = jitter({"x": value}, torch.Generator().manual_seed(1))["x"]
        names = ("brightness", "contrast", "saturation", "hue")
        for image, four, turns, made in zip(value, factors.tolist(), order.tolist(), found, strict=True):
            wanted = image
            for kind in turns:
                wanted = getattr(v2.functional, f"adjust_{names[kind]}")(wanted, four[kind])
            torch.testing.assert_close(made, wanted, atol=1e-5, rtol=1e-5)

    def test_labels_are_mixed_as_torchvision_mixes_them(self):
        """Where all samples have one share, as torchvision's have."""
        torch.manual_seed(1)  # a rectangle may be of no pixel, which leaves labels as they were
        value, labels = torch.rand(5, 3, 64, 64), torch.tensor([0, 1, 2, 3, 1])
        for ours, theirs in ((gdsload.transforms.MixUp, v2.MixUp), (gdsload.transforms.CutMix, v2.CutMix)):
            found = ours("x", "y", 4)({"x": value, "y": labels})
            images, mixed = theirs(num_classes=4)(value, labels)
            assert found["y"].dtype == mixed.dtype
            assert (found["y"] > 0).logical_or(mixed == 0).all()
            assert images.shape == found["x"].shape
