"""Files of pictures in sources of every kind: each function returns the source, the field of pictures, and options."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as tables
import pytest
from PIL import Image

from tests.conversion.contents import pack


def folder(root, files):
    for number, raw in enumerate(files):
        (root / f"{number}.jpg").write_bytes(raw)
    return root, "image", {"kind": "images"}


def csv(root, files):
    folder(root, files)
    (root / "a.csv").write_text("\n".join(["image", *(f"{number}.jpg" for number in range(len(files)))]))
    return root / "a.csv", "image", {}


def tar(root, files):
    return pack(root / "a.tar", [(f"{number}.jpg", raw) for number, raw in enumerate(files)]), "jpg", {}


def parquet(root, files):
    table = pa.table({"image": [{"bytes": raw, "path": None} for raw in files]})
    tables.write_table(table, root / "a.parquet", row_group_size=2)
    return root / "a.parquet", "image", {}


def in_memory(_root, files):
    library = pytest.importorskip("datasets")
    rows = {"image": [{"bytes": raw, "path": None} for raw in files]}
    return library.Dataset.from_dict(rows, library.Features({"image": library.Image()})), "image", {}


def saved(root, files):
    pytest.importorskip("datasets").disable_progress_bars()
    in_memory(root, files)[0].save_to_disk(str(root / "d"))
    return root / "d", "image", {}


def parquet_of_datasets(root, files):
    in_memory(root, files)[0].to_parquet(str(root / "a.parquet"))
    return root / "a.parquet", "image", {}


def lmdb(root, files):
    library = pytest.importorskip("lmdb")
    with library.open(str(root / "l"), map_size=2**20) as environment, environment.begin(write=True) as transaction:
        for number, raw in enumerate(files):
            transaction.put(b"%03d" % number, raw)
    return root / "l", "value", {"decode": "image", "kind": "lmdb"}


def coco(root, files):
    folder(root, files)
    images = []
    for number, raw in enumerate(files):
        with Image.open(io.BytesIO(raw)) as image:
            images.append({"id": number, "file_name": f"{number}.jpg", "width": image.width, "height": image.height})
    tree = {"categories": [], "annotations": [], "images": images}
    (root / "_annotations.coco.json").write_text(json.dumps(tree))
    return root, "image", {"kind": "coco"}


def yolo(root, files):
    for name in ("images", "labels"):
        (root / name).mkdir()
    folder(root / "images", files)
    (root / "labels" / "0.txt").write_text("0 0.5 0.5 0.25 0.5\n")
    (root / "data.yaml").write_text("names: [cat]\ntrain: images\n")
    return root, "image", {"kind": "yolo"}


WAYS = [folder, csv, tar, parquet, in_memory, saved, parquet_of_datasets, lmdb, coco, yolo]
