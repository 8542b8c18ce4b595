"""TFRecord files: protobuf messages and frames written here byte by byte, as TensorFlow writes them, and damaged ones."""

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.conversion.sources.tfrecord_files import TfRecordSource
from gdsload.errors import FormatError
from tests.conversion.contents import npy, picture, tfrecord

pytest.importorskip("google_crc32c")
pytest.importorskip("google.protobuf")


def varint(number):
    number &= 2**64 - 1
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def chunk(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values, packed):
    """A list of bytes, floats or ints, as the message of a feature."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        body = values.astype("<f4").tobytes()
        inner = chunk(1, body) if packed else b"".join(b"\x0d" + body[at : at + 4] for at in range(0, len(body), 4))
        return chunk(2, inner if len(values) else b"")
    if isinstance(values, np.ndarray):
        numbers = [varint(int(value)) for value in values]
        inner = chunk(1, b"".join(numbers)) if packed else b"".join(b"\x08" + number for number in numbers)
        return chunk(3, inner if numbers else b"")
    return chunk(1, b"".join(chunk(1, value) for value in values))


def example(features, packed=True):
    entries = [chunk(1, chunk(1, name.encode()) + chunk(2, feature(value, packed))) for name, value in features.items()]
    return chunk(1, b"".join(entries))


def write(path, examples, packed=True):
    content = b"".join(tfrecord(one if isinstance(one, bytes) else example(one, packed)) for one in examples)
    path.write_bytes(gzip.compress(content) if path.name.endswith(".gz") else content)
    return str(path)


def ints(*values):
    return np.array(values, np.int64)


def floats(*values):
    return np.array(values, np.float32)


SAMPLES = st.lists(
    st.fixed_dictionaries({
        "i": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
        "f": st.lists(st.floats(width=32, allow_nan=False), min_size=3, max_size=3),
        "b": st.binary(max_size=20),
        "n": st.integers(-5, 5),
    }),
    min_size=1,
    max_size=20,
)  # fmt: skip


@settings(max_examples=40)
@given(SAMPLES, st.booleans(), st.sampled_from([".tfrecord", ".tfrecord.gz"]))
def test_every_value_as_it_was_written(tmp_path_factory, samples_in, samples, packed, suffix):
    examples = [{"i": ints(*one["i"]), "f": floats(*one["f"]), "b": [one["b"]], "n": ints(one["n"])} for one in samples]
    source = TfRecordSource(
        write(tmp_path_factory.mktemp("t") / f"a{suffix}", examples, packed), types={"i": "list", "b": "bytes"}
    )
    for target in (1, 100, 2**20):
        found = samples_in(source, target)
        assert [one["b"] for one in found] == [one["b"] for one in samples]
        assert [one["i"].tolist() for one in found] == [one["i"] for one in samples]
        assert np.array_equal([one["f"] for one in found], [one["f"] for one in samples])
        assert [(int(one["n"]), one["n"].shape) for one in found] == [(one["n"], ()) for one in samples]
        assert (found[0]["i"].dtype, found[0]["f"].dtype, found[0]["n"].dtype) == (np.int64, np.float32, np.int64)


def test_fixed_where_all_have_one_length_and_ragged_otherwise(tmp_path, converted):
    """A list that a later record lacks is empty."""
    examples = [{"fixed": floats(n, n, n), "ragged": ints(*range(n % 4)), "one": ints(n)} for n in range(50)]
    examples.append({"fixed": floats(1, 2, 3), "one": ints(50)})
    write(tmp_path / "a.tfrecord", examples)
    dataset = converted(tmp_path / "a.tfrecord", shard_bytes=1000)
    assert {name: (field.dtype.name, field.shape) for name, field in dataset.schema.items()} == {
        "fixed": ("float32", (3,)), "ragged": ("int64", (None,)), "one": ("int64", ())
    }  # fmt: skip
    assert (dataset[7]["ragged"].tolist(), dataset[50]["ragged"].tolist(), len(dataset)) == ([0, 1, 2], [], 51)


def test_pictures_are_decoded_and_bytes_are_what_they_are_said_to_be(tmp_path, samples_in):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
    one = {
        "image/encoded": [picture(pixels)], "image/format": [b"PNG"], "raw": [pixels.tobytes()],
        "wide": [np.arange(4, dtype="<u2").tobytes()], "npy": [npy(pixels)],
    }  # fmt: skip
    path = write(tmp_path / "a.tfrecord", [one])
    types = {"image/format": "text", "raw": "uint8", "wide": "uint16", "npy": "npy"}
    (found,) = samples_in(TfRecordSource(path, types=types))
    assert np.array_equal(found["image/encoded"], pixels.transpose(2, 0, 1))
    assert found["image/format"] == "PNG"
    assert np.array_equal(found["raw"].reshape(6, 8, 3), pixels)
    assert found["wide"].tolist() == [0, 1, 2, 3]
    assert np.array_equal(found["npy"], pixels)
    (small,) = samples_in(TfRecordSource(path, size=4, mode="L").only(["image/encoded"]))
    assert {name: value.shape for name, value in small.items()} == {"image/encoded": (1, 4, 4)}
    (kept,) = samples_in(TfRecordSource(path, types={"image/encoded": "bytes"}))
    assert kept["image/encoded"] == one["image/encoded"][0]
    assert kept["raw"] == pixels.tobytes()


def test_what_no_field_can_have_is_refused_with_the_way_out(tmp_path, samples_in):
    path = write(tmp_path / "a.tfrecord", [{"x": ints(1), "names": [b"a", b"b"]}])
    with pytest.raises(FormatError, match=r"feature 'names' has several strings.*fields="):
        TfRecordSource(path).parts(1)
    assert samples_in(TfRecordSource(path).only(["x"])) == [{"x": 1}]
    no_lists = TfRecordSource(write(tmp_path / "b.tfrecord", [example({"x": ints(1)}) + chunk(2, b"")]))
    assert samples_in(no_lists) == [{"x": 1}]
    for content, match in (
        (example({"x": ints(1)}) + chunk(2, chunk(1, b"")), "SequenceExample"),
        (b"", "has no features"),
        (b"\xff" * 9, "no tf.train.Example"),
    ):
        with pytest.raises(FormatError, match=match):
            TfRecordSource(write(tmp_path / "b.tfrecord", [content])).parts(1)


GOOD = {"x": ints(1), "y": floats(1, 2)}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"x": ints(1, 2), "y": floats(1)}, """feature 'x' has 2 values, not one. Pass `types={"x": "list"}`"""),
        ({"y": floats(1)}, "feature 'x' has 0 values"),
        ({"x": floats(1)}, "feature 'x' is a float_list, but was a int64_list"),
        ({**GOOD, "z": ints(1)}, "feature 'z', which the first records do not have"),
    ],
)
def test_a_later_record_that_differs_is_at_fault_alone(tmp_path, left_out, bad, reason):
    assert len(left_out(write(tmp_path / "a.tfrecord", [GOOD] * 99 + [bad]), {"record 99": reason})) == 99


@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecord.gz"])
def test_damaged_files(tmp_path, survives_damage, name):
    examples = [{"x": ints(n), "y": floats(*range(n % 5)), "z": [bytes(n)]} for n in range(20)]
    path = write(tmp_path / name, examples)
    assert survives_damage(path, lambda: TfRecordSource(path)) > 70  # all but those cut between two records


def test_one_flipped_bit_is_found_anywhere(tmp_path, samples_in):
    path = write(tmp_path / "a.tfrecord", [{"x": ints(n)} for n in range(3)])
    whole = (tmp_path / "a.tfrecord").read_bytes()
    for place in range(len(whole)):
        (tmp_path / "a.tfrecord").write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        with pytest.raises(FormatError, match="checksum"):
            samples_in(TfRecordSource(path))


def test_lengths_that_look_as_gzip_does(tmp_path, samples_in):
    """A record of 559903 bytes begins with the bytes of gzip's header."""
    size = 0x088B1F - len(example({"x": [bytes(2**19)]})) + 2**19
    path = write(tmp_path / "a.tfrecord", [{"x": [bytes(size)]}])
    assert (tmp_path / "a.tfrecord").read_bytes()[:3] == b"\x1f\x8b\x08"
    assert len(samples_in(TfRecordSource(path))[0]["x"]) == size
