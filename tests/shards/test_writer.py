"""Schemas from first samples, refusals, and writers that do not end well."""

import itertools
import os
import pickle
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gdsload
from gdsload import Field, OptionError, Schema, SchemaError, ShardDataset, ShardWriter, WriteError
from gdsload.shards import writer as writer_module

# --- schemas from the first sample or batch ---

SAMPLES = [
    (3, Field("int64")),
    (True, Field("bool")),
    (1.5, Field("float64")),
    (np.float32(1.5), Field("float32")),
    (np.complex64(1j), Field("complex64")),
    (2**63, Field("uint64")),
    ("text", Field("str")),
    (b"raw", Field("bytes")),
    ([1, 2, 3], Field("int64", (3,))),
    ([2**63 + 1, 5], Field("uint64", (2,))),
    ([[1.0, 2.0]], Field("float64", (1, 2))),
    ([np.zeros(2), np.ones(2)], Field("float64", (2, 2))),
    ([torch.zeros(2, dtype=torch.bfloat16)] * 3, Field("bfloat16", (3, 2))),
    (np.zeros((2, 3), ">i2"), Field("int16", (2, 3))),
    (torch.zeros(4, dtype=torch.float8_e4m3fn), Field("float8_e4m3fn", (4,))),
]


def test_python_floats_are_rounded_by_a_schema_alone(tmp_path):
    """A narrower field that the first sample has made refuses them."""
    with ShardWriter(tmp_path / "inferred") as writer:
        writer.write({"x": np.float32(0.5), "y": torch.ones(2)})
        for value in ({"x": 0.1, "y": [0.5, 1]}, {"x": np.float32(1), "y": [1, 0.1]}):
            with pytest.raises(SchemaError, match="it is float64, but the schema says float32"):
                writer.write(value)
        with pytest.raises(SchemaError, match="it is float64, but the schema says float32"):
            writer.write_batch({"x": [0.1, 0.2], "y": torch.ones(2, 2)})
        writer.write({"x": 1, "y": [1, 2]})
    with ShardWriter(tmp_path / "given", {"x": Field("float32")}) as writer:
        writer.write({"x": 0.1})
        writer.write_batch({"x": [0.1, 0.2]})
    assert ShardDataset(tmp_path / "given").column("x").tolist() == np.float32([0.1, 0.1, 0.2]).tolist()


@pytest.mark.parametrize("value", [[], np.zeros((0, 3), np.int16)], ids=["list", "array"])
def test_a_first_sample_without_rows_does_not_say_whether_they_vary(tmp_path, value):
    """Refused at once, and not when the second sample comes; a schema says it."""
    with ShardWriter(tmp_path / "d") as writer:
        with pytest.raises(SchemaError, match=r"field 'x': the first sample has shape \[0.*\(None,.*if it does not"):
            writer.write({"x": value})
        writer.write({"x": np.ones(2)})
    field = Field("float32", (None,)) if isinstance(value, list) else Field("int16", (None, 3))
    with ShardWriter(tmp_path / "e", {"x": field}) as writer:
        writer.write({"x": value})
    assert len(ShardDataset(tmp_path / "e")) == 1


def nested(lengths, **options):
    return torch.nested.nested_tensor([torch.ones(length, 2) for length in lengths], layout=torch.jagged, **options)


def made(value):
    """A nested tensor is made in the test: the first imports much of torch, which not each process that collects needs."""
    return value() if callable(value) else value


BATCHES = [
    ([1, 2], Field("int64")),
    (["a", "b"], Field("str")),
    ([b"a", b"b"], Field("bytes")),
    (torch.zeros(2, 3), Field("float32", (3,))),
    ([torch.zeros(3), torch.zeros(3)], Field("float32", (3,))),
    ([torch.zeros(3, 2), torch.zeros(4, 2)], Field("float32", (None, 2))),
    ((torch.zeros(5, 2), [0, 2, 5]), Field("float32", (None, 2))),
    (lambda: nested([2, 3], requires_grad=True), Field("float32", (None, 2))),
]


@pytest.mark.parametrize(
    ("write", "value", "field"),
    [*((ShardWriter.write, *one) for one in SAMPLES), *((ShardWriter.write_batch, *one) for one in BATCHES)],
)
def test_schema_of_what_is_written_first(tmp_path, write, value, field):
    with ShardWriter(tmp_path / "d") as writer:
        assert writer.schema is None
        write(writer, {"x": made(value)})
        assert writer.schema == Schema({"x": field})
    dataset = ShardDataset(tmp_path / "d")
    assert (dataset.schema, len(dataset)) == (Schema({"x": field}), 1 if write is ShardWriter.write else 2)


def test_nested_tensor_with_holes(tmp_path):
    """One that `narrow` made shares values with what it was made of; its samples are not all of them."""
    whole = torch.arange(20.0).reshape(4, 5)
    holes = torch.nested.narrow(whole, 1, torch.tensor([0, 1, 2, 3]), torch.tensor([1, 2, 3, 2]), layout=torch.jagged)
    with ShardWriter(tmp_path / "d") as writer:
        writer.write_batch({"x": holes})
    found = [sample["x"].tolist() for sample in ShardDataset(tmp_path / "d")]
    assert found == [[0], [6, 7], [12, 13, 14], [18, 19]]


def test_nested_tensor_whose_second_dimension_varies(tmp_path):
    turned = nested([2, 3]).transpose(1, 2)
    with ShardWriter(tmp_path / "d", {"x": Field("float32", (None, 2))}) as writer:
        with pytest.raises(SchemaError, match=r"field 'x': a sample has shape \[2, 3\], but \[any, 2\] was"):
            writer.write_batch({"x": turned})
        writer.write({"x": torch.ones(1, 2)})


# --- refusals ---

FIELDS = {"x": Field("float32", (2,)), "n": Field("uint8"), "r": Field("int16", (None, 2)), "s": "str", "b": "bytes"}
ROWS = np.ones((3, 2), np.int16)
GOOD = {"x": [1.0, 2.0], "n": 7, "r": ROWS, "s": "ok", "b": b"ok"}
BAD = [
    ({"x": torch.zeros(3)}, "field 'x': a sample has shape [3], but [2] was expected"),
    ({"x": 1.0}, "field 'x': a sample has shape [], but [2] was expected"),
    ({"x": torch.zeros(2, dtype=torch.float64)}, "field 'x': it is float64, but the schema says float32"),
    ({"x": np.zeros(2, np.float16)}, "field 'x': it is float16, but the schema says float32"),
    ({"x": [[1.0], [2.0, 3.0]]}, "field 'x': nested lists of different lengths have no shape"),
    ({"x": [1j, 0]}, "field 'x': [1j, 0] is complex, but float32 was expected"),
    ({"x": np.array(["a", "b"])}, "field 'x': element type 'str32' cannot be stored"),
    ({"x": torch.zeros(2, device="meta")}, "field 'x': a tensor on the meta device has no data"),
    ({"x": lambda: nested([1, 2])}, "field 'x': a nested tensor holds many samples"),
    ({"n": 256}, "field 'n': 256 does not fit uint8"),
    ({"n": 1.5}, "field 'n': 1.5 does not fit uint8"),
    ({"n": 2**70}, "field 'n': '1180591620717411303424' is no number"),
    ({"r": np.ones((3, 3), np.int16)}, "field 'r': a sample has shape [3, 3], but [any, 2] was expected"),
    ({"s": b"raw"}, "field 's': it is bytes, but str was expected"),
    ({"s": "\ud800"}, "field 's': the text '\\ud800' is no valid Unicode"),
    ({"b": "text"}, "field 'b': it is str, but bytes was expected"),
    ({"more": 1}, "the fields are 'x', 'n', 'r', 's', 'b', 'more', but 'x', 'n', 'r', 's', 'b' were expected"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_refused_sample_leaves_nothing(tmp_path, change, message):
    with ShardWriter(tmp_path / "d", FIELDS) as writer:
        writer.write(GOOD)
        with pytest.raises(SchemaError, match=re.escape(message)) as caught:
            writer.write(GOOD | {name: made(value) for name, value in change.items()})
        assert str(caught.value) == str(pickle.loads(pickle.dumps(caught.value)))
        writer.write({**GOOD, "n": 8})
        assert writer.samples == 2
    dataset = ShardDataset(tmp_path / "d")
    assert [int(sample["n"]) for sample in dataset] == [7, 8]
    assert dataset.verify().shards == 1


BAD_BATCHES = [
    ({"n": [1, 2, 3]}, "different numbers of samples ('x': 2, 'n': 3, 'r': 2, 's': 2, 'b': 2)"),
    ({"n": 3}, "field 'n': a batch needs one value for each sample, but this is a single number"),
    ({"n": torch.tensor(3, dtype=torch.uint8)}, "field 'n': a batch needs one value for each sample"),
    ({"x": torch.zeros(2, 3)}, "field 'x': a sample has shape [3], but [2] was expected"),
    ({"x": [torch.zeros(2), torch.zeros(3)]}, "field 'x': a sample has shape [3], but [2] was expected"),
    ({"x": (torch.zeros(2), torch.zeros(2))}, "field 'x': it is a tuple"),
    ({"r": torch.zeros(2, 3, 2, dtype=torch.int16)}, "field 'r': a batch of a ragged field is a list of tensors"),
    ({"r": (ROWS, [0, 1, 2])}, "field 'r': offsets must rise from 0 to the number of rows, 3"),
    ({"r": (ROWS, [1, 2, 3])}, "field 'r': offsets must rise from 0 to the number of rows, 3"),
    ({"r": (ROWS, [0, 4, 3])}, "field 'r': offsets must rise from 0 to the number of rows, 3"),
    ({"r": (ROWS, [0.0, 1.0, 3.0])}, "field 'r': offsets are no vector of whole numbers"),
    ({"r": (ROWS, torch.zeros(3, dtype=torch.bfloat16))}, "field 'r': offsets are no vector"),
    ({"r": (ROWS, [[0], [1, 3]])}, "field 'r': offsets are no vector of whole numbers"),
    ({"r": (ROWS, 3)}, "field 'r': offsets are no vector of whole numbers"),
    ({"s": "ab"}, "field 's': a batch needs a list of str, not str"),
    ({"s": ["a", b"b"]}, "field 's': it is bytes, but str was expected"),
]


@pytest.mark.parametrize(("change", "message"), BAD_BATCHES, ids=lambda value: str(value)[:40])
def test_refused_batch_leaves_nothing(tmp_path, change, message):
    good = {"x": torch.ones(2, 2), "n": [1, 2], "r": [GOOD["r"]] * 2, "s": ["a", "b"], "b": [b"", b"c"]}
    with ShardWriter(tmp_path / "d", FIELDS) as writer:
        writer.write_batch(good)
        with pytest.raises(SchemaError, match=re.escape(message)):
            writer.write_batch({**good, **change})
        writer.write_batch(good)
    assert [int(sample["n"]) for sample in ShardDataset(tmp_path / "d")] == [1, 2, 1, 2]


def test_a_tuple_of_numbers_is_a_batch_of_them(tmp_path):
    """As `images, labels = zip(*samples)` has labels; a pair (values, offsets) has no such values."""
    with ShardWriter(tmp_path / "d", {"n": Field("int64")}) as writer:
        writer.write_batch({"n": (1, 2)})
        writer.write_batch({"n": (torch.tensor(3), torch.tensor(4))})
    assert [int(sample["n"]) for sample in ShardDataset(tmp_path / "d")] == [1, 2, 3, 4]


@settings(derandomize=True, max_examples=200)
@given(
    st.sampled_from(["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]),
    st.lists(st.integers(-(2**65), 2**65) | st.integers(-300, 300), min_size=1, max_size=3),
)
def test_whole_numbers_are_stored_exactly_or_refused(dtype, numbers):
    from gdsload.shards.encode import sample_rows

    schema = Schema({"x": Field(dtype, (len(numbers),))})
    info = np.iinfo(dtype)
    try:
        data = sample_rows(schema, {"x": numbers})["x"].data
    except SchemaError:
        assert min(numbers) < info.min or max(numbers) > info.max
    else:
        assert numbers == data.view(dtype)[0].tolist()


@pytest.mark.parametrize(("shape", "other"), [((3,), (4,)), ((3, 2, 5), (1, 2, 5))])
def test_the_remedy_for_samples_of_several_lengths_works(tmp_path, shape, other):
    with pytest.raises(SchemaError, match="first dimension varies") as info, ShardWriter(tmp_path / "d") as writer:
        writer.write({"t": np.zeros(shape, np.int64)})
        writer.write({"t": np.zeros(other, np.int64)})
    found = re.search(r"schema=(\{.*\})", info.value.remedy)
    with ShardWriter(tmp_path / "d", eval(found[1], {"gdsload": gdsload})) as writer:
        writer.write({"t": np.zeros(shape, np.int64)})
        writer.write({"t": np.zeros(other, np.int64)})
    assert [ShardDataset(tmp_path / "d")[number]["t"].shape for number in range(2)] == [shape, other]


def test_samples_of_several_widths_have_no_remedy(tmp_path):
    match = r"shape \[3, 4\], but \[3, 2\] was expected$"
    with pytest.raises(SchemaError, match=match), ShardWriter(tmp_path / "d") as writer:
        writer.write({"t": np.zeros((3, 2))})
        writer.write({"t": np.zeros((3, 4))})


def test_refused_first_sample_decides_nothing(tmp_path):
    with ShardWriter(tmp_path / "d") as writer:
        with pytest.raises(SchemaError, match="different numbers of samples"):
            writer.write_batch({"a": [1, 2], "b": [1.0]})
        assert writer.schema is None
        writer.write({"c": 1})
    assert list(ShardDataset(tmp_path / "d").schema) == ["c"]


@pytest.mark.parametrize("sample", [(1, 2), [1], torch.ones(2), None, "text"], ids=str)
def test_sample_that_is_no_mapping(tmp_path, sample):
    for schema in (None, {"x": Field("int64")}):
        with ShardWriter(tmp_path / "d", schema, overwrite=True) as writer:
            for write in (writer.write, writer.write_batch):
                with pytest.raises(SchemaError, match="but a mapping from field names to values was expected"):
                    write(sample)
            writer.write({"x": 1})


def test_empty_batches(tmp_path):
    fields = {"x": Field("float32", (2,)), "r": Field("int8", (None, 3)), "s": "str"}
    with ShardWriter(tmp_path / "d", fields) as writer:
        writer.write_batch({"x": [], "r": [], "s": []})
        writer.write_batch({"x": torch.zeros(0, 2), "r": (torch.zeros(0, 3, dtype=torch.int8), [0]), "s": []})
        assert writer.samples == 0
    assert len(ShardDataset(tmp_path / "d")) == 0
    with ShardWriter(tmp_path / "e") as writer:
        with pytest.raises(SchemaError, match="not say what it is a list of. Give the writer a schema"):
            writer.write_batch({"x": []})
        writer.write({"x": 1})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("shard_bytes", value) for value in (0, -1, "0", "many", 1.5, None)),
        *(("pack_fields", value) for value in ("a", None, 3, [1], b"a")),
    ],
)
def test_options_that_make_no_sense(tmp_path, option, value):
    with pytest.raises(OptionError, match=f"{option} is") as caught:
        ShardWriter(tmp_path / "d", **{option: value})
    assert caught.value.option == option
    assert os.listdir(tmp_path) == []


# --- ends ---


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, WriteError])
def test_exception_leaves_nothing(tmp_path, error):
    def work():
        with ShardWriter(tmp_path / "d", shard_bytes=1) as writer:
            if error is not WriteError:  # raised where there are neither samples nor a schema
                writer.write({"x": 1})
                raise error("stop")

    with pytest.raises(error, match="stop|neither samples nor a schema. Give a schema"):
        work()
    writer = ShardWriter(tmp_path / "d")
    writer.write({"x": 1})
    del writer
    assert os.listdir(tmp_path) == []


def test_interrupt_amid_a_write_leaves_nothing(tmp_path, monkeypatch):
    """Half of a sample may be there already, so there is no going on."""
    writer = ShardWriter(tmp_path / "d", {"x": Field("int64"), "y": Field("int64")})
    writer.write({"x": 1, "y": 1})
    real = writer_module.sample_rows

    class Struck(np.ndarray):
        def __getitem__(self, _):
            raise KeyboardInterrupt("now")

    def struck(*args):
        rows = real(*args)
        return {**rows, "y": replace(rows["y"], data=rows["y"].data.view(Struck))}

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt, match="now"):
        patch.setattr(writer_module, "sample_rows", struck)
        writer.write({"x": 2, "y": 2})
    with pytest.raises(WriteError, match="the writer is aborted"):
        writer.write({"x": 3, "y": 3})
    assert os.listdir(tmp_path) == []


def test_a_sample_takes_time_in_proportion_to_its_fields(tmp_path):
    def calls(fields):
        counted = itertools.count()
        with gdsload.ShardWriter(tmp_path / str(fields), pack_fields=()) as writer:
            sys.setprofile(lambda *_: next(counted))
            writer.write({f"x{number}": number for number in range(fields)})
            sys.setprofile(None)
        return next(counted)

    assert calls(400) < 5 * calls(100)


def test_closed_writer_refuses(tmp_path):
    writer = ShardWriter(tmp_path / "d")
    writer.write({"x": 1})
    writer.close()
    for act in (writer.close, lambda: writer.write({"x": 1}), lambda: writer.write_batch({"x": [1]})):
        with pytest.raises(WriteError, match="the writer is closed"):
            act()
    writer.abort()
    assert (writer.samples, len(ShardDataset(tmp_path / "d"))) == (1, 1)
