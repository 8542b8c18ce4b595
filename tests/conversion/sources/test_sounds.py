"""Sounds: in folders, tar files, and as `datasets` stores them."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gdsload
from gdsload.conversion.sources.sounds import sound_fields
from gdsload.errors import FormatError, ReadError, SchemaError
from tests.conversion.contents import pack

soundfile = pytest.importorskip("soundfile", reason="gdsload[audio] decodes sounds")
RATE = 16_000
EXACT = {
    "int16": ("WAV", "PCM_16"),
    "int32": ("FLAC", "PCM_24"),
    "float32": ("WAV", "FLOAT"),
    "float64": ("WAV", "DOUBLE"),
}


def samples(number=0, dtype="int16", channels=1):
    rng = np.random.default_rng(number)
    shape = (2000 + 100 * number, channels)[:channels]
    if dtype.startswith("int"):
        return rng.integers(-9999, 9999, shape).astype(dtype) << (8 if dtype == "int32" else 0)
    return rng.random(shape).astype(dtype) - 0.5


def encoded(values, kind="FLAC", subtype="PCM_16", rate=RATE):
    stream = io.BytesIO()
    soundfile.write(stream, values, rate, format=kind, subtype=subtype)
    return stream.getvalue()


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("dtype", EXACT)
def test_samples_are_those_of_the_file(dtype, channels):
    values = samples(3, dtype, channels)
    found = sound_fields("a", encoded(values, *EXACT[dtype]), "x")
    assert (found["a"].dtype, found["a"].shape) == (values.dtype, values.shape)
    assert np.array_equal(found["a"], values)
    assert (found["a.sampling_rate"].dtype, int(found["a.sampling_rate"])) == (np.int32, RATE)


@pytest.mark.parametrize("kind", [("MP3", "MPEG_LAYER_III"), ("OGG", "VORBIS"), ("OGG", "OPUS")])
def test_lossy_sounds_are_float32(kind):
    found = sound_fields("a", encoded(np.sin(np.arange(8000) / 20) / 2, *kind), "x")
    assert (found["a"].dtype, found["a"].shape, found["a.sampling_rate"]) == (np.float32, (8000,), RATE)


@pytest.mark.parametrize("kind", [("WAV", "PCM_16"), ("AIFF", "PCM_24"), ("OGG", "VORBIS")])
def test_a_sound_of_no_frames_is_refused(kind):
    with pytest.raises(FormatError, match="the sound has no frames"):
        sound_fields("a", encoded(np.zeros(0), *kind), "x")


@pytest.mark.parametrize("riff", [0, 36, None])
def test_a_recording_that_broke_off_is_refused(riff):
    """Its header says that there is nothing, since nobody came back to write how much."""
    content = bytearray(encoded(samples(), "WAV"))
    size = content.index(b"data") + 4
    content[size : size + 4] = bytes(4)
    content[4:8] = content[4:8] if riff is None else riff.to_bytes(4, "little")
    with pytest.raises(FormatError, match="the sound has no frames"):
        sound_fields("a", bytes(content), "x")


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "AIFF"])
def test_a_file_that_is_cut_short_is_refused(kind):
    content = encoded(samples(), kind)
    for length in (0, 1, 11, 60, len(content) // 2, len(content) - 100):
        with pytest.raises(FormatError, match="the sound " if length else "cannot be decoded: the file is empty"):
            sound_fields("a", content[:length], "x")


def write(folder, names, rate=RATE):
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(encoded(samples(number), name.rpartition(".")[2].upper(), rate=rate + number))
    return folder


def test_a_folder_of_classes(tmp_path, converted):
    names = ["no/1.wav", "no/2.flac", "yes/1.wav"]
    folder = write(tmp_path / "d", names)
    dataset = converted(folder, with_key=True)
    assert (dataset.schema["audio"].shape, dataset.schema["audio"].dtype.name) == ((None,), "int16")
    assert all(np.array_equal(one["audio"], samples(n)) for n, one in enumerate(dataset))
    assert dataset.column("audio.sampling_rate").tolist() == [RATE, RATE + 1, RATE + 2]
    assert (dataset.column("label").tolist(), dataset.column("key")) == ([0, 0, 1], names)
    assert dataset.metadata["classes"] == {"label": ["no", "yes"]}
    kept = converted(folder, keep_encoded=True)
    assert kept.column("audio") == [(folder / name).read_bytes() for name in names]


def test_late_sounds_of_another_length_or_type(tmp_path, converted):
    for number in range(70):
        (tmp_path / f"{number:03}.wav").write_bytes(encoded(np.zeros(8 if number < 69 else 5, np.int16), "WAV"))
    assert len(converted(tmp_path)[69]["audio"]) == 5
    (tmp_path / "070.wav").write_bytes(encoded(np.zeros(8), "WAV", "FLOAT"))
    said = "it is float32, but the schema says int16. A cast leaves each in its scale; `dtype="
    with pytest.raises(ReadError, match=said):
        converted(tmp_path)


def test_tar_files(tmp_path, converted):
    sounds = [encoded(samples(number)) for number in range(3)]
    members = [
        (f"{number}{end}", raw) for number, one in enumerate(sounds) for end, raw in ((".flac", one), (".txt", b"a"))
    ]
    path = pack(tmp_path / "a.tar", members)
    dataset = converted(path, fields=["flac", "flac.sampling_rate", "txt"])
    assert all(np.array_equal(one["flac"], samples(n)) for n, one in enumerate(dataset))
    assert dataset.column("flac.sampling_rate").tolist() == [RATE] * 3
    assert converted(path, keep_encoded=True).column("flac") == sounds


def tables(tmp_path):
    rows = [{"bytes": encoded(samples(n)), "path": f"{n}.flac"} for n in range(3)]
    noted = json.dumps({"info": {"features": {"audio": {"_type": "Audio"}, "n": {"_type": "Value", "dtype": "int64"}}}})
    table = pa.table({"audio": rows, "n": [0, 1, 2]}).replace_schema_metadata({"huggingface": noted})
    pq.write_table(table, tmp_path / "t.parquet")
    yield tmp_path / "t.parquet"
    library = pytest.importorskip("datasets")
    features = library.Features({"audio": library.Audio(decode=False), "n": library.Value("int64")})
    # Its own encoder would need torchcodec.
    yield library.Dataset(library.table.InMemoryTable(table), library.DatasetInfo(features=features))


def test_columns_of_datasets(tmp_path):
    names = ["audio.sampling_rate", "audio", "n"]
    for number, source in enumerate(tables(tmp_path)):
        report = gdsload.convert(source, tmp_path / f"{number}", workers=1, fields=names)
        dataset = gdsload.ShardDataset(report.path)
        assert (list(dataset.schema), report.notes) == (names, ())
        assert all(np.array_equal(one["audio"], samples(n)) for n, one in enumerate(dataset))
        report = gdsload.convert(source, tmp_path / f"{number} kept", workers=1, keep_encoded=True)
        assert gdsload.ShardDataset(report.path).column("audio") == [encoded(samples(n)) for n in range(3)]
        assert report.notes == ("'audio' has the bytes of the files as they are",)


@pytest.mark.parametrize("keep_encoded", [True, False])
def test_paths_of_a_dataset_in_memory_are_followed(tmp_path, converted, keep_encoded):
    write(tmp_path / "d", ["0.flac", "1.flac"])
    library = pytest.importorskip("datasets")
    features = library.Features({"audio": library.Audio(decode=False)})
    rows = [{"bytes": None, "path": str(tmp_path / "d" / f"{n}.flac")} for n in range(2)]
    table = pa.table({"audio": pa.array(rows, features.arrow_schema.field("audio").type)})
    source = library.Dataset(library.table.InMemoryTable(table), library.DatasetInfo(features=features))
    found = converted(source, keep_encoded=keep_encoded).column("audio")
    if keep_encoded:
        assert found == [encoded(samples(n), rate=RATE + n) for n in range(2)]
    else:
        assert found[0].tolist() == [*samples(0), *samples(1)]


def test_a_damaged_sound_is_a_bad_sample(tmp_path, left_out):
    folder = write(tmp_path / "d", ["a.flac", "b.flac"])
    content = (folder / "b.flac").read_bytes()
    (folder / "b.flac").write_bytes(content[: len(content) // 2])
    assert len(left_out(folder, {str(folder / "b.flac"): "the sound cannot be decoded"})) == 1


SCALES = [("WAV", "PCM_U8"), ("WAV", "PCM_16"), ("FLAC", "PCM_24"), ("WAV", "FLOAT"), ("WAV", "DOUBLE")]
LOUD = np.sin(np.arange(2000) / 20) / 2


@pytest.fixture
def scales(tmp_path):
    """The same sound in files of several types."""
    (tmp_path / "d").mkdir()
    for number, kind in enumerate(SCALES):
        (tmp_path / "d" / f"{number}.{kind[0].lower()}").write_bytes(encoded(LOUD, *kind))
    return tmp_path / "d"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sounds_of_several_types_in_one_scale(scales, tmp_path, converted, dtype):
    said = "samples differ: int16.*A cast leaves each in its scale; `dtype='float32'` makes all"
    with pytest.raises(SchemaError, match=said):
        gdsload.convert(scales, tmp_path / "out", workers=1)
    dataset = converted(scales, dtype=dtype)
    assert dataset.schema["audio"].dtype.name == dtype
    for one, tolerance in zip(dataset, (2**-7, 2**-15, 2**-22, 1e-7, 1e-7), strict=True):
        assert np.abs(one["audio"].numpy() - LOUD).max() <= tolerance


@pytest.mark.parametrize("fields", [None, ["audio"]])
def test_a_cast_puts_no_scales_together(scales, tmp_path, fields):
    how = {"workers": 1, "fields": fields, "shard_bytes": 20_000}  # tasks of one sound or two
    for kind in ("float32", "int32"):
        with pytest.raises(ReadError, match=f"the sound is int16, and cast to {kind} it.*`dtype='float32'`"):
            gdsload.convert(scales, tmp_path / "out", casts={"audio": kind}, **how)
    for kind in ("0.wav", "1.wav", "2.flac"):
        (scales / kind).unlink()
    with pytest.raises(SchemaError, match="samples differ: float32.*`casts={'audio': 'float64'}`"):
        gdsload.convert(scales, tmp_path / "out", **how)
    gdsload.convert(scales, tmp_path / "out", casts={"audio": "float64"}, **how)
    assert all(np.abs(one["audio"].numpy() - LOUD).max() < 1e-7 for one in gdsload.ShardDataset(tmp_path / "out"))
