"""Fields of encoded images, as they are written and handed out without being decoded."""

import numpy as np
import pytest
import torch

from gdsload import DataLoader, Field, ShardDataset, ShardWriter
from gdsload.shards.format.image_header import IMAGE_CODECS

SIGNATURES = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n", "webp": b"RIFF\1\2\3\4WEBP"}
SCHEMA = {"image": Field("image"), "label": Field("int64")}


def images(count, seed=0):
    generator = np.random.default_rng(seed)
    kinds = [SIGNATURES[IMAGE_CODECS[number % 3]] for number in range(count)]
    return [kind + generator.bytes(generator.integers(0, 9000)) for kind in kinds]


@pytest.fixture
def written(tmp_path):
    found = images(40)
    with ShardWriter(tmp_path / "d", SCHEMA, shard_bytes=50_000) as writer:
        for number, image in enumerate(found[:10]):
            writer.write({"image": image if number % 2 else torch.frombuffer(bytearray(image), dtype=torch.uint8),
                          "label": number})  # fmt: skip
        arrays = [np.frombuffer(image, np.uint8) for image in found[10:]]
        writer.write_batch({"image": arrays, "label": np.arange(10, 40)})
    return tmp_path / "d", found


def test_batches_have_the_bytes_that_were_written(written, shuffle):
    path, found = written
    with DataLoader(path, 7, shuffle, device="cpu") as loader:
        batches = list(loader)
    assert sum(len(batch["label"]) for batch in batches) == 40
    for batch in batches:
        assert batch["image"] == [found[label] for label in batch["label"].tolist()]


def test_samples_and_columns_have_them_too(written):
    path, found = written
    dataset = ShardDataset(path)
    assert dataset.schema["image"] == Field("image")
    assert [dataset[number]["image"] for number in range(40)] == found
    assert dataset.column("image") == found
    assert dataset.lengths("image").tolist() == [*map(len, found)]
    assert dataset.verify(deep=True).shards == len(dataset.shards)
