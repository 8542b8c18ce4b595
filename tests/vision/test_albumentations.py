"""albumentations in `sample_transform=`, as the guide has it: a draw for each sample, in any thread or process."""

import re
import textwrap
from pathlib import Path

import pytest
import torch

import gdsload

GUIDE = Path(gdsload.__file__).resolve().parent.parent / "docs/transforms.md"
SAMPLES = 64


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Images of which no two parts are alike, and their numbers."""
    path = tmp_path_factory.mktemp("images") / "d"
    with gdsload.ShardWriter(path) as writer:
        pixels = torch.randint(0, 256, (1, 3, 300, 256), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
        writer.write_batch({"image": pixels.expand(SAMPLES, -1, -1, -1), "label": torch.arange(SAMPLES)})
    return path


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Makes a module that worker processes can import, too."""
    monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")  # else importing it asks PyPI for a newer one
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(name, code):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code))
        return __import__(name)

    return make


def run(images, transform, *, processes=False, workers=2, epochs=1, **options):
    """The results of each sample, by epochs."""
    found = []
    with gdsload.DataLoader(
        images, 8, shuffle="full", device="cpu", sample_transform=gdsload.PerSample(transform, workers=workers, processes=processes), **options,
    ) as loader:  # fmt: skip
        for _ in range(epochs):
            found.append({})
            for batch in loader:
                found[-1].update(zip(batch["label"].tolist(), batch["image"], strict=True))
    assert all(sorted(one) == list(range(SAMPLES)) for one in found)
    return found


def equal(one, other):
    return all(torch.equal(one[label], other[label]) for label in range(SAMPLES))


def test_the_guides_recipe_draws_for_each_sample_and_the_same_again(images, module):
    """All images are the same: what differs in the results is what was drawn."""
    (recipe,) = re.findall(r"```python\n(import random\n.*?albumentations.*?)```", GUIDE.read_text(), re.DOTALL)
    train = module("albumentations_recipe", recipe).train
    first, second = run(images, train, epochs=2, seed=1)
    assert len({image.numpy().tobytes() for image in [*first.values(), *second.values()]}) == 2 * SAMPLES
    assert first[0].shape == (3, 224, 224)
    assert equal(first, run(images, train, workers=1, seed=1)[0])
    assert equal(first, run(images, train, workers=3, seed=1)[0])
    assert all(map(equal, (first, second), run(images, train, processes=True, epochs=2, seed=1)))
    assert not equal(first, run(images, train, seed=2)[0])


FLIPS = """
    import albumentations as A
    import numpy as np
    import random, torch

    augment = A.Compose([A.HorizontalFlip(p=0.5), A.VerticalFlip(p=0.5)], seed={seed})

    def made(sample):
        image = augment(image=sample["image"].permute(1, 2, 0).numpy())["image"]
        return {{"label": sample["label"], "image": torch.from_numpy(image.copy()).permute(2, 0, 1)}}

    def plain(sample):
        return made(sample)

    def seeded(sample):
        augment.set_random_seed(int(torch.randint(2**31, ())))
        return made(sample)
"""


def flips(images, found):
    """How often images were left, mirrored, turned upside down, and both."""
    image = gdsload.ShardDataset(images)[0]["image"]
    ways = [image, image.flip(2), image.flip(1), image.flip(1, 2)]
    return [sum(torch.equal(way, one) for one in found.values()) for way in ways]


def test_what_the_guide_says_of_other_ways(images, module):
    """Where this fails, albumentations has changed, and the guide may say less."""
    free = module("albumentations_free", FLIPS.format(seed=None))
    assert not equal(run(images, free.plain, workers=1, seed=1)[0], run(images, free.plain, workers=1, seed=1)[0])
    assert all(flips(images, run(images, free.plain, seed=1)[0]))

    left, across, down, both = flips(images, run(images, free.seeded, processes=True, seed=1)[0])
    assert (across, down) == (0, 0)
    assert left + both == SAMPLES
