"""`torch.set_default_device` is the consumer's affair: it moves no batch, and transforms see the same in every thread."""

import pytest
import torch

import gdsload
from gdsload import Field
from gdsload.testing import fingerprint
from gdsload.transforms import Normalize


@pytest.fixture
def ragged(tmp_path):
    """Forty samples; half of them hold nothing."""
    schema = {"t": Field("int32", (None,)), "x": Field("uint8", (3, 4, 4))}
    with gdsload.ShardWriter(tmp_path / "ragged", schema) as writer:
        for number in range(40):
            image = torch.full((3, 4, 4), number, dtype=torch.uint8)
            writer.write({"t": [] if number < 20 else [number, 2], "x": image})
    return tmp_path / "ragged"


@pytest.mark.parametrize("form", ["offsets", "jagged", "padded", "varlen"])
def test_batches_are_the_same(ragged, form):
    def prints():
        loader = gdsload.DataLoader(ragged, 10, device="cpu", ragged=form)
        return [fingerprint(batch) for batch in loader], fingerprint(gdsload.ShardDataset(ragged)[0])

    expected = prints()
    with torch.device("meta"):  # stands for "cuda": whatever is made without a device fails or shows
        assert prints() == expected


@pytest.mark.parametrize("workers", [0, 3])
def test_transforms_see_the_processor_in_every_thread(ragged, workers, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(workers + 1))
    seen = []

    def look(batch):
        seen.append(torch.empty(0).device.type)
        return batch

    normalize = Normalize("x", [0.5] * 3, [0.5] * 3)
    with torch.device("meta"):
        batches = list(gdsload.DataLoader(ragged, 4, fields=["x"], device="cpu", device_transform=[look, normalize]))
    assert set(seen) == {"cpu"}
    assert torch.equal(batches[0]["x"][1], torch.full((3, 4, 4), (1 / 255 - 0.5) / 0.5))
