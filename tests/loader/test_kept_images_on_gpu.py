"""cache="vram" with decode=: images are decoded once, and batches are those of a loader that decodes them every time."""

from queue import SimpleQueue

import pytest
import torch

from gdsload import DataLoader, Field, Memory, ShardWriter
from gdsload.backends.tiers import registered
from gdsload.engine.gpu import decode_images
from gdsload.system import streams
from gdsload.transforms import DecodeImage
from tests.loader.pictures import encoded

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.filterwarnings("ignore:.*torchvision:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*TorchCodec.*"),
]
COUNT = 90
WANTED = {
    "center": DecodeImage(size=32, crop="center", flip=0.5),
    "normalized": DecodeImage(
        size=(20, 30), flip=0.5, mean=(0.5,) * 3, std=(0.2,) * 3, dtype=torch.bfloat16, channels_last=True
    ),
    "any size": DecodeImage(flip=0.5),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path, schema = tmp_path_factory.mktemp("kept") / "d", {"image": Field("image"), "label": Field("int64")}
    with ShardWriter(path, schema, shard_bytes=100_000) as writer:
        for number in range(COUNT):
            writer.write({"image": encoded(number, smallest=40, largest=90), "label": number})
    return path


def loader(path, kind, **given):
    return DataLoader(path, 16, "full", seed=3, decode={"image": WANTED[kind]}, device="cuda", **given)


@pytest.mark.parametrize("budget", ["64MiB", 100_000])
@pytest.mark.parametrize("kind", WANTED)
def test_epochs_are_those_of_a_loader_that_keeps_nothing(path, kind, budget):
    with loader(path, kind) as plain, loader(path, kind, cache="vram", memory=Memory(vram=budget)) as kept:
        for _ in range(3):
            for batch, other in zip(kept, plain, strict=True):
                assert batch["label"].tolist() == other["label"].tolist()
                for mine, yours in zip(batch["image"], other["image"], strict=True):
                    assert mine.is_cuda
                    assert torch.equal(mine, yours)
                    assert mine.stride() == yours.stride()
                    mine.zero_()  # a user's batch is the user's
        tier = kept.cache.tiers["decoded"]
    assert tier.images == COUNT if budget == "64MiB" else 0 < tier.images < COUNT
    assert tier.hit_bytes >= tier.held_bytes


def test_what_is_kept_stays_while_the_consumer_is_slow(path):
    with loader(path, "center", cache="vram", memory=Memory(vram="64MiB")) as kept:
        sums = [[batch["image"].double().sum().item() for batch in kept] for _ in range(3)]
    with loader(path, "center", cache="vram", memory=Memory(vram="64MiB")) as kept:
        for expected in sums:
            found = []
            for batch in kept:
                torch.cuda._sleep(20_000_000)
                found.append(batch["image"].double().sum())
                batch["image"].fill_(9)
                del batch
            assert [one.item() for one in found] == expected


@pytest.mark.parametrize("guard", [True, False])
def test_kept_images_are_gathered_into_memory_that_nothing_reads(path, guard, monkeypatch):
    """Images are decoded on another stream, where the memory of a batch may still be read when it is free."""
    made = []
    monkeypatch.setattr(
        decode_images, "side_stream", lambda device: made.append(streams.side_stream(device)) or made[-1]
    )
    if not guard:
        empty = decode_images.DeviceImages.empty_batch

        def as_if_decoded(*arguments):
            with streams.on(made[-1]):
                return empty(*arguments)

        monkeypatch.setattr(decode_images.DeviceImages, "empty_batch", as_if_decoded)
    with loader(path, "center", cache="vram", memory=Memory(vram="64MiB")) as kept:
        for _ in range(2):
            for batch in kept:
                del batch
        # A kernel that is loaded waits for the device, so the first time may show no race.
        assert all(_stays_while_it_is_read(kept, made[-1]) for _ in range(3)) == guard


def _stays_while_it_is_read(kept, stream):
    """Return whether what `stream` still reads from freed memory is what was there, when `kept` has made a batch."""
    torch.cuda.synchronize()
    with streams.on(stream):
        # Neighbours in memory: what is freed is of the size of a batch, so it is the next batch's memory.
        blocks = [torch.full((16, 3, 32, 32), 7, dtype=torch.uint8, device="cuda") for _ in range(64)]
        before, seen = blocks[::2], blocks[1::2]
        torch.cuda._sleep(4_000_000_000)  # some seconds: other tests may hold the batch up
        for one, other in zip(seen, before, strict=True):
            one.zero_().copy_(other)
        del blocks, before, other
    next(iter(kept))
    torch.cuda.synchronize()
    return all(bool((one == 7).all()) for one in seen)


@pytest.mark.parametrize(("decode", "at_once"), [({}, 4), ({"image": WANTED["center"]}, 2)])
def test_fewer_shards_are_read_whole_at_once_beside_a_decoder(path, monkeypatch, decode, at_once):
    seen = SimpleQueue()
    monkeypatch.setattr(registered, "keep", lambda *_given, at_once, **_more: seen.put(at_once) or "")
    with DataLoader(path, 16, "full", device="cuda", decode=decode) as loader:
        next(iter(loader))
        assert seen.get(timeout=20) == at_once
