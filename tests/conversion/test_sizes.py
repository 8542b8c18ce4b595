"""How large a result will be is said of the result, not of the files that it is made of."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

from gdsload.conversion.runner import plan
from tests.conversion.picture_sources import folder, in_memory, parquet
from tests.conversion.tar_files import pack

Image = pytest.importorskip("PIL.Image")


def jpeg(seed, size=(40, 30)):
    noise = np.random.default_rng(seed).integers(0, 256, (size[1] // 8, size[0] // 8, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noise).resize(size).save(stream, "jpeg")
    return stream.getvalue()


def tar_beside_json(folder, files, name="a.tar"):
    members = []
    for number, raw in enumerate(files):
        members += [(f"{number}.jpg", raw), (f"{number}.json", json.dumps({"n": number}).encode())]
    return pack(folder / name, members, mode="w:gz" if name.endswith(".gz") else "w"), "jpg", {}


FILES = [jpeg(number) for number in range(60)]


@pytest.mark.parametrize("options", [{"size": 64}, {}, {"keep_encoded": True}], ids=["sized", "own size", "kept"])
@pytest.mark.parametrize("made", [folder, tar_beside_json, parquet, in_memory], ids=lambda one: one.__name__)
def test_it_is_what_comes_of_it(tmp_path, converted, made, options):
    source, _, own = made(tmp_path, FILES)
    found = plan(source, **own, **options)
    written = converted(source, **own, **options).num_bytes
    padding = 4096 * 8  # headers, and what fills pages
    assert found.nbytes * 0.85 - padding < written < found.nbytes * 1.15 + padding


def test_pixels_are_many_times_their_files(tmp_path):
    found = plan(tar_beside_json(tmp_path, FILES)[0], size=224)
    assert found.nbytes > 60 * 224 * 224 * 3 * 0.9
    assert [part.nbytes for part in found.parts] == [found.nbytes]


def test_a_packed_tar(tmp_path):
    large = [jpeg(number, (320, 240)) for number in range(60)]
    assert plan(tar_beside_json(tmp_path, large, "a.tar.gz")[0], size=224).nbytes > 60 * 224 * 224 * 3 * 0.7
