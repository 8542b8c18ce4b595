"""Batches built in CPU memory, on a GPU: pinned, and copied ahead of the consumer."""

import threading
from operator import itemgetter

import pytest
import torch

from gdsload import DataLoader, Memory, PerSample
from gdsload.engine.gpu.device_queue import DeviceQueue
from gdsload.testing import assert_resumes_everywhere, fingerprint
from gdsload.transforms import DecodeImage
from tests.on_gpu import check_as_on_cpu, numbered_rows, used_late
from tests.pools import own_threads

pytestmark = pytest.mark.cuda


def halved(sample):
    return {"pair": (sample["image"] / 2, [sample["label"]]), "text": sample["text"], "index": sample["index"]}


@pytest.mark.parametrize("shuffle", [False, "full", "block"])
@pytest.mark.parametrize("ahead", [False, True])
def test_samples_that_were_transformed(varied, shuffle, ahead):
    options = {"sample_transform": PerSample(halved, workers=3), "ahead": ahead, "with_index": True}
    check_as_on_cpu(varied, {}, batch_size=17, shuffle=shuffle, **options)


@pytest.mark.parametrize("cache", ["none", "ram"])
def test_decoded_images(numbered_images, device, cache):
    """Which could be decoded is said on the CPU."""
    options = {"decode": {"image": DecodeImage(size=20, crop="center", on_error="zeros")}, "cache": cache}
    with (
        DataLoader(numbered_images, 7, "full", device=device, backend="host", **options) as ours,
        DataLoader(numbered_images, 7, "full", device="cpu", **options) as theirs,
    ):
        for _ in range(2):
            for mine, other in zip(ours, theirs, strict=True):
                assert fingerprint(mine) == fingerprint(other)
                assert (mine["image"].device, mine["image.decoded"].device.type) == (device, "cpu")


def test_what_is_copied_is_pinned_and_not_from_the_consumers_thread_alone(numbered, device, monkeypatch):
    pinned, threads, copied = set(), set(), DeviceQueue.copied

    def note(self, tensor):
        pinned.add(tensor.is_pinned())
        threads.add(threading.current_thread().name)
        return copied(self, tensor)

    monkeypatch.setattr(DeviceQueue, "copied", note)
    with DataLoader(numbered, 256, "full", device=device, backend="host") as loader:
        for _ in loader:
            torch.cuda.synchronize()
    assert pinned == {True}
    assert any(name.startswith("gdsload") for name in threads)


@pytest.mark.parametrize("own", [False, True])
def test_samples_on_the_device_may_be_dropped_while_they_are_used(numbered, own):
    stream = torch.cuda.Stream() if own else torch.cuda.current_stream()
    options = {"sample_transform": PerSample(dict, workers=2), "memory": Memory(prefetch="2MiB")}
    with DataLoader(numbered, 128, device="cuda", **options) as loader, torch.cuda.stream(stream):
        found = used_late(loader, lambda batch: batch["x"].clone())
    for step, rows in enumerate(found):
        assert torch.equal(rows.cpu(), numbered_rows(128 * step, 128 * step + 128))


@pytest.mark.parametrize("way", [{"backend": "host"}, {"sample_transform": PerSample(itemgetter("image"), workers=2)}])
def test_resuming_and_closing_in_the_middle(varied, device, way):
    assert_resumes_everywhere(lambda: DataLoader(varied, 60, "full", device=device, **way))
    loader = DataLoader(varied, 10, "full", device=device, **way)
    batches = iter(loader)
    kept = [next(batches) for _ in range(3)]
    loader.close()
    with DataLoader(varied, 10, "full", device="cpu") as other:
        for one, batch in zip(kept, other, strict=False):
            assert torch.equal((one["image"] if isinstance(one, dict) else one).cpu(), batch["image"])
    assert own_threads() == []
