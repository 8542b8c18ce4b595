"""Images of every kind of source: kept as the files that they are, or decoded to one size and form."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as tables
import pytest
from PIL import Image

from gdsload import Field, ShardDataset, convert
from gdsload.conversion.recognise import source_for
from gdsload.conversion.runner import plan
from gdsload.errors import ConversionError, SchemaError
from tests.conversion.contents import pack, picture
from tests.conversion.picture_sources import WAYS, coco, in_memory, yolo
from tests.conversion.reading import made_by

DATA = Path(__file__).parent.parent / "data"


def encoded(codec="jpeg", size=(12, 8), mode="RGB", seed=0, orientation=None):
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return picture(Image.fromarray(noise).convert(mode), codec, orientation)


FILES = [
    encoded("jpeg", (12, 8), orientation=6),
    encoded("png", (7, 9), "RGBA", 1),
    encoded("webp", (30, 5), seed=2),
    encoded("jpeg", (6, 11), "L", 3, orientation=1),
    encoded("png", (8, 8), "P", 4),
]
SIZES, ORIENTATIONS = [(12, 8), (7, 9), (30, 5), (6, 11), (8, 8)], [6, 1, 1, 1, 1]
LABELS = [0, 1, 0, 1, 1]


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def source(request, tmp_path):
    """A source of any kind of the same images, of several sizes and codecs, the field that they are in, and options."""
    folder = tmp_path / "source"
    folder.mkdir()
    return request.param(folder, FILES)


def test_files_are_kept_as_they_are(source, converted):
    where, name, options = source
    dataset = converted(where, keep_encoded=True, **options)
    assert dataset.schema[name] == Field("image")
    assert dataset.column(name) == FILES
    beside = [dataset.column(f"{name}.{one}").tolist() for one in ("width", "height", "orientation")]
    assert list(zip(*beside[:2], strict=True)) == SIZES
    assert beside[2] == ORIENTATIONS
    assert {"int32", "uint8"} == {dataset.schema[f"{name}.{one}"].dtype.name for one in ("width", "orientation")}


CUT_OFF_BY_CROPS = (coco, yolo)
RESIZED = [(way, how) for way in WAYS for how in ("crop", "squash") if how == "squash" or way not in CUT_OFF_BY_CROPS]


@pytest.mark.parametrize(("source", "resize"), RESIZED, indirect=["source"])
def test_a_size_makes_them_equal(source, converted, resize):
    where, name, options = source
    dataset = converted(where, size=6, resize=resize, **options)
    assert dataset.schema[name] == Field("uint8", (3, 6, 6))
    assert len(dataset) == len(FILES)


def test_images_of_several_sizes_are_refused_with_every_way_out(source, tmp_path):
    where, name, options = source
    with pytest.raises(SchemaError, match=r"samples differ: uint8 \[3, \d+, \d+\] and uint8 .*"
                       r"`size=224`.*`keep_encoded=True`") as caught:  # fmt: skip
        convert(where, tmp_path / "out", workers=1, **options)
    assert caught.value.field == name
    if options.get("kind") in ("coco", "yolo"):  # to crop would cut objects off
        assert "resize='squash'" in str(caught.value)


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_an_image_of_another_size_far_behind_is_refused_with_every_way_out(tmp_path, on_error):
    """Where all that is looked at before is of one size."""
    samples = [{"png": encoded("png", (9, 8) if number < 70 else (8, 9))} for number in range(71)]
    path = write_tar(tmp_path / "a.tar", *samples)
    with pytest.raises(ConversionError, match="`size=224`.*`keep_encoded=True`") as caught:
        convert(path, tmp_path / "out", workers=1, on_error=on_error, max_skipped=0)
    assert r"a sample has shape [3, 9, 8], but [3, 8, 9] was expected" in str(caught.value)


@pytest.mark.parametrize("data", ["mds", "litdata"])
def test_images_of_shards_of_others_are_kept(converted, data):
    """A picture that was stored as pixels is a PNG then."""
    source = DATA / data / "images"
    kept, plain = converted(source, keep_encoded=True), source_for(str(source), data, {"mode": "keep"})
    decoded = made_by(plain)
    images = [name for name, field in kept.schema.items() if field.kind == "image"]
    assert len(images) > 1
    for name in images:
        for raw, sample in zip(kept.column(name), decoded, strict=True):
            found = np.asarray(Image.open(io.BytesIO(raw)))
            found = found[None] if found.ndim == 2 else found.transpose(2, 0, 1)
            assert np.array_equal(found, sample[name])
    if data == "mds":
        assert all(raw[:2] == b"\xff\xd8" for raw in kept.column("jpeg"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        *((encoded(codec), "cannot be kept encoded") for codec in ("gif", "bmp", "tiff", "ppm")),
        (FILES[1][:40], "the header of the image is damaged: it ends inside a chunk"),
    ],
    ids=["gif", "bmp", "tiff", "ppm", "damaged"],
)
def test_other_formats_and_damaged_images_are_bad_samples(tmp_path, left_out, content, reason):
    (tmp_path / "s" / "c").mkdir(parents=True)
    for number, raw in enumerate([*FILES[:2], content]):
        (tmp_path / "s" / "c" / f"{number}.png").write_bytes(raw)
    assert len(left_out(tmp_path / "s", {"c/2.png": reason}, keep_encoded=True)) == 2


# --- channels ---


def write_tar(path, *samples):
    members = [(f"{n:04}.{extension}", raw) for n, sample in enumerate(samples) for extension, raw in sample.items()]
    return pack(path, members)


def schema_of(path, **options):
    return {name: field.shape for name, field in plan(path, workers=1, **options).schema.items() if name != "key"}


def test_masks_stay_indices_beside_photos(tmp_path, converted):
    """VOC: some photos are grey, masks have palettes; each field is what its pictures are."""
    samples = [{"jpg": encoded("jpeg", mode="L" if number == 1 else "RGB"), "seg.png": encoded("png", mode="P")}
               for number in range(4)]  # fmt: skip
    path = write_tar(tmp_path / "a.tar", *samples)
    dataset = converted(path)
    assert (dataset.schema["jpg"].shape, dataset.schema["seg_png"].shape) == ((3, 8, 12), (1, 8, 12))
    indices = np.asarray(Image.open(io.BytesIO(samples[0]["seg.png"])))
    assert np.array_equal(dataset[0]["seg_png"][0].numpy(), indices)


@pytest.mark.parametrize("mode", ["L", "1", "P"])
def test_pictures_of_one_channel_stay_so(tmp_path, mode):
    path = write_tar(tmp_path / "a.tar", *[{"png": encoded("png", mode=mode, seed=seed)} for seed in range(3)])
    assert schema_of(path) == {"png": (1, 8, 12)}
    assert schema_of(path, mode="RGB") == {"png": (3, 8, 12)}
    assert schema_of(path, mode={"png": "RGBA"}) == {"png": (4, 8, 12)}
    assert schema_of(path, mode={"jpg": "RGBA"}) == {"png": (1, 8, 12)}


def test_a_coloured_picture_behind_grey_ones_is_no_grey_one(tmp_path, converted):
    samples = [{"png": encoded("png", mode="L" if number < 70 else "RGB")} for number in range(71)]
    path = write_tar(tmp_path / "a.tar", *samples)
    said = "0070 of .*the first pictures of field 'png', of one channel: it has mode RGB"
    with pytest.raises(ConversionError, match=said):
        convert(path, tmp_path / "out", workers=1)
    assert converted(path, mode="L").schema["png"].shape == (1, 8, 12)


@pytest.mark.parametrize("first", ["L", "RGB"])
def test_channels_are_never_ragged(tmp_path, first):
    modes = [first, "L", "RGB"]
    path = write_tar(tmp_path / "a.tar", *[{"png": encoded("png", mode=mode)} for mode in modes])
    with pytest.raises(SchemaError, match=r"samples differ: .*`mode={'png': 'RGB'}`"):
        plan(path, mode="keep", workers=1)
    assert schema_of(path, mode="keep", ragged=["png"]) == {"png": (None, 8, 12)}
    assert schema_of(path) == {"png": (3, 8, 12)}


def test_a_mode_for_a_field_and_one_for_all_others(tmp_path):
    path = write_tar(tmp_path / "a.tar", {name: encoded("png", mode="P") for name in ("a.png", "b.png", "c.png")})
    options = {"mode": "RGBA", "mode.a_png": "keep", "mode.b_png": "L"}
    wanted = {"a_png": (1, 8, 12), "b_png": (1, 8, 12), "c_png": (4, 8, 12)}
    assert schema_of(path, source_options=options) == wanted
    assert schema_of(path, source_options=dict(reversed(options.items()))) == wanted


@pytest.mark.parametrize("form", ["memory", "saved", "parquet"])
def test_a_mode_that_features_name_counts_where_none_is_given(tmp_path, converted, form):
    library = pytest.importorskip("datasets")
    library.disable_progress_bars()
    features = library.Features({"image": library.Image(mode="L"), "other": library.Image(mode="CMYK")})
    rows = [{"bytes": encoded("png", seed=seed), "path": None} for seed in range(2)]
    made = library.Dataset.from_dict({"image": rows, "other": rows}, features)
    where = made if form == "memory" else tmp_path / "d"
    if form == "saved":
        made.save_to_disk(str(where))
    elif form == "parquet":
        where = tmp_path / "a.parquet"
        made.to_parquet(str(where))
    found = converted(where)
    assert np.array_equal(found[1]["image"][0], np.asarray(made[1]["image"]))
    assert found.schema["other"].shape == (3, 8, 12)
    assert schema_of(where, mode="RGBA") == {"image": (4, 8, 12), "other": (4, 8, 12)}


def test_a_dataset_with_a_transform_gives_what_that_makes(tmp_path, converted):
    dataset = in_memory(tmp_path, FILES)[0].with_transform(lambda rows: {"x": [np.float32(1)] * len(rows["image"])})
    assert list(converted(dataset).schema) == ["x"]


def test_a_dataset_with_chosen_columns_gives_these(tmp_path, converted):
    dataset = in_memory(tmp_path, FILES)[0].add_column("label", LABELS).with_format("numpy", columns=["label"])
    assert converted(dataset).column("label").tolist() == LABELS


@pytest.mark.parametrize("keep_encoded", [True, False])
def test_paths_of_a_dataset_in_memory_are_followed(tmp_path, keep_encoded):
    """As `datasets` itself does: its folders of images, and columns that are cast, have no more than paths."""
    library = pytest.importorskip("datasets")
    for number, raw in enumerate(FILES):
        (tmp_path / f"{number}").write_bytes(raw)
    paths = {"image": [str(tmp_path / f"{number}") for number in range(len(FILES))]}
    dataset = library.Dataset.from_dict(paths).cast_column("image", library.Image())
    how = {"keep_encoded": keep_encoded} if keep_encoded else {"size": 8}
    for name, source in (("paths", dataset), ("bytes", in_memory(tmp_path, FILES)[0])):
        convert(source, tmp_path / name, **how)
    assert ShardDataset(tmp_path / "paths").digest == ShardDataset(tmp_path / "bytes").digest
    (tmp_path / "0").unlink()
    with pytest.raises(ConversionError, match=r"0' cannot be read: .*No such file"):
        convert(dataset, tmp_path / "none", workers=1, **how)


@pytest.mark.parametrize("noted", [b"", b"{", b"[]", b'{"info": 3}', b'{"info": {"features": [1]}}', b"[" * 10**5])
def test_notes_that_are_none_do_no_harm(tmp_path, noted):
    table = pa.table({"image": [{"bytes": FILES[0], "path": None}], "x": [1]})
    tables.write_table(table.replace_schema_metadata({b"huggingface": noted}), tmp_path / "a.parquet")
    assert schema_of(tmp_path / "a.parquet") == {"image": (3, 12, 8), "x": ()}
