"""Lines of JSON, each an object."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gdsload
from gdsload.conversion.sources import json_lines
from gdsload.conversion.sources.json_lines import JsonLinesSource
from gdsload.errors import FormatError, GdsloadError, OptionError, ReadError
from tests.conversion.reading import plain

ROWS = [{"text": f"a {n} é", "label": n, "x": n / 3, "ids": list(range(n % 4)), "ok": n % 2 == 0} for n in range(50)]
RECORDS = st.fixed_dictionaries({
    "i": st.integers(-(2**63), 2**63 - 1), "f": st.floats(allow_nan=False, allow_infinity=False), "b": st.booleans(),
    "s": st.text(st.characters(exclude_categories=["Cs"])), "l": st.lists(st.integers(-9, 9), max_size=3),
})  # fmt: skip


def write(path, rows):
    content = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


@settings(max_examples=40)
@given(rows=st.lists(RECORDS, min_size=1, max_size=20), target=st.integers(1, 2000))
def test_all_rows_as_they_were_written(rows, target, tmp_path_factory, samples_in):
    rows = [{"i": 1, "f": 0.5, "b": True, "s": "", "l": [1]}, *rows]  # which says what the others are
    path = write(tmp_path_factory.mktemp("json") / "a.jsonl", rows)
    assert [plain(one) for one in samples_in(JsonLinesSource(path), target)] == rows


@pytest.mark.parametrize("name", ["a.ndjson", "a.jsonl.gz"])
def test_fields_of_shards(tmp_path, converted, name):
    dataset = converted(write(tmp_path / name, ROWS))
    names = {name: field.dtype.name for name, field in dataset.schema.items() if not field.is_string}
    assert names == {"label": "int64", "x": "float64", "ids": "int64", "ok": "bool"}
    assert [plain(one) for one in dataset] == ROWS


def test_lists_are_tokens(tmp_path, left_out):
    lines = ["[1, 2]", "[70000]", "[-1]", '["a"]', "[1.5]", "[[1]]", "[]", "[3]"]
    (tmp_path / "t.jsonl").write_text("[0]\n" * 1000 + "\n".join(lines))
    bad = dict.fromkeys([f"row {number}" for number in (1003, 1004, 1005)], "the key 'tokens' cannot be list<")
    found = left_out(tmp_path / "t.jsonl", bad)
    assert [found[number]["tokens"].tolist() for number in range(999, 1005)] == [[0], [1, 2], [70000], [-1], [], [3]]


def test_what_a_key_is_in_is_a_field_and_what_varies_may_be_a_text(tmp_path, samples_in):
    rows = [{"s": {"a": 1, "b": "x"}, "chat": [{"role": "user"}]}, {"s": {"a": 2, "b": "y"}, "chat": "none"}]
    path = write(tmp_path / "a.jsonl", rows)
    with pytest.raises(FormatError, match=r"'chat' cannot be a field.*Keep it.*`as_json=\['chat'\]`"):
        JsonLinesSource(path).parts(1)
    found = samples_in(JsonLinesSource(path, as_json=["chat"]))
    assert [json.loads(one["chat"]) for one in found] == [row["chat"] for row in rows]
    assert [(int(one["s.a"]), one["s.b"]) for one in found] == [(1, "x"), (2, "y")]
    assert [int(one["s.a"]) for one in samples_in(JsonLinesSource(path).only(["s.a"]))] == [1, 2]


def test_numbers_and_texts_are_no_others(tmp_path, samples_in):
    rows = [{"n": 2**64 - 1, "t": "2024-01-01", "l": [2**63]}, {"n": 1, "t": "2024-01-02", "l": []}]
    first, second = samples_in(JsonLinesSource(write(tmp_path / "a.jsonl", rows)))
    assert (first["n"].dtype, int(first["n"]), first["t"]) == (np.dtype("uint64"), 2**64 - 1, "2024-01-01")
    assert (first["l"].tolist(), second["l"].tolist()) == ([2**63], [])


@pytest.mark.parametrize(
    "numbers", [[1, 2**64, 2**64 + 1], [-1, 2**64 - 1], [0.5, 2**53 + 1, 2**53]], ids=["beyond", "signs", "floats"]
)
@pytest.mark.parametrize(("name", "wrap"), [("n", lambda n: n), ("l", lambda n: [n]), ("s.id", lambda n: {"id": n})])
def test_whole_numbers_that_would_be_rounded_are_refused(tmp_path, samples_in, left_out, numbers, name, wrap):
    """At once, or, where one comes after the first lines, as a bad line."""
    path = write(tmp_path / "a.jsonl", [{name.partition(".")[0]: wrap(number), "x": 1e300} for number in numbers])
    with pytest.raises(FormatError, match=rf"key '{name}' .*`as_json=\['{name}'\]`.*`types={{'{name}': 'float64'}}`"):
        JsonLinesSource(path).parts(100)
    texts = [json.loads(one[name]) for one in samples_in(JsonLinesSource(path, as_json=[name]))]
    assert texts == (numbers if name == "s.id" else [wrap(number) for number in numbers])
    assert len(samples_in(JsonLinesSource(path).only(["x"]))) == len(numbers)
    rounded = [np.ravel(one[name])[0] for one in samples_in(JsonLinesSource(path, types={name: "float64"}))]
    assert rounded == list(map(float, numbers))
    rows = [{name.partition(".")[0]: wrap(number)} for number in [numbers[0]] * 1000 + [numbers[1]]]
    left_out(write(tmp_path / "late.jsonl", rows), {"row 1000": f"the key '{name}' cannot be "})


@pytest.mark.parametrize("before", [1, 1000])
def test_whole_numbers_that_are_floating_point_ones_and_too_large_ones_at_fault_alone(tmp_path, left_out, before):
    """JavaScript writes 1e20 as a whole number."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": 0.5}\n' * before + '{"x": 100000000000000000000}\n{"x": 1e400}\n')
    dataset = left_out(path, {f"row {before + 1}": "a number is too large"})
    assert dataset.column("x").tolist() == [0.5] * before + [1e20]


def test_whole_numbers_alone_become_no_floating_point_ones(tmp_path):
    with pytest.raises(FormatError, match="key 'n' cannot be uint64"):
        JsonLinesSource(write(tmp_path / "a.jsonl", [{"n": -1}, {"n": 2**63}])).parts(100)


WRONG = {
    "nope": "no JSON: ",
    "[1]": "no JSON object: b'[1]",
    '{"n": 1, "t": [1]}': "the first lines have no key 't'",
    "null": "no JSON object: b'null",
    '{"n": "a"}': "the key 'n' cannot be int64: ",
    '{"n": 1, "m": 2}': "the first lines have no key 'm'",
    '{"n": 1, "n": 2}': "no JSON: it has a key twice",
    '{"n": 1e400}': "the key 'n' cannot be int64: ",
    "{}": "no value",
}


def test_a_bad_line_is_at_fault_alone(tmp_path, left_out):
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n' * 1100 + "".join(f'{line}\n\n{{"n": 2}}\n' for line in WRONG))
    dataset = left_out(path, {f"row {1100 + 2 * number}": why for number, why in enumerate(WRONG.values())})
    assert dataset.column("n").tolist() == [1] * 1100 + [2] * len(WRONG)


def test_a_list_among_objects_is_no_object_that_lacks_the_key(tmp_path, left_out):
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n[5]\n{"n": 2}\n')
    dataset = left_out(path, {"row 1": "no JSON object: b'[5]"}, fields=["n"], fill={"n": -1})
    assert dataset.column("n").tolist() == [1, 2]


@pytest.mark.parametrize(
    ("line", "options", "said"),
    [
        ('{"n": ' + "9" * 400 + "}", {"types": {"n": "float64"}}, "key 'n' cannot be double: int too large"),
        ('{"n": ' + "[" * 200_000 + "]" * 200_000 + "}", {"as_json": ["n"]}, "nested too deeply"),
    ],
    ids=["digits", "nested"],
)
def test_what_python_cannot_hold_is_an_error_of_gdsload(tmp_path, line, options, said):
    (tmp_path / "a.jsonl").write_text(line + "\n")
    with pytest.raises(gdsload.GdsloadError, match=said):
        gdsload.convert(tmp_path / "a.jsonl", tmp_path / "out", workers=1, **options)


@pytest.mark.parametrize(
    ("value", "other", "key", "late"),
    [
        (1, "a", "odd", 3), ([1], [1, "a"], "odd", 3), (1, True, "o/d", 3), (0.5, True, "odd", 1000),
        (1, "a", "odd", 1000), ([1], {"a": 1}, "odd", 3), ({"a": 1}, 5, "odd", 1000), (5, {"a": 1}, "odd", 3),
    ],
)  # fmt: skip
def test_a_key_of_several_types_is_named(tmp_path, converted, value, other, key, late):
    path = write(tmp_path / "a.jsonl", [{"a": 1, key: value, "z": 1}] * late + [{"a": 1, key: other, "z": 1}])
    with pytest.raises(GdsloadError, match=f"(key|column) '{key}(.a)?'"):
        gdsload.convert(path, tmp_path / "out", workers=1)
    assert [json.loads(one) for one in converted(path, as_json=[key]).column(key)] == [value] * late + [other]


@pytest.mark.parametrize(("late", "kind"), [(1.5, "float64"), (2**64 - 1, "uint64")])
@pytest.mark.parametrize(("key", "wrap"), [("b", lambda n: n), ("b", lambda n: [n]), ("b.c", lambda n: {"c": n})])
def test_a_number_that_its_key_does_not_hold(tmp_path, converted, late, kind, key, wrap):
    path = write(tmp_path / "a.jsonl", [{"a": 1, "b": wrap(1)}] * 1000 + [{"a": 1, "b": wrap(late)}])
    with pytest.raises(ReadError, match=f"row 1000 of .*the key '{key}' cannot be"):
        converted(path)
    assert converted(path, types={key: kind})[1000][key].item() == late


def test_minus_zero_is_a_whole_number_without_a_sign(tmp_path, converted):
    (tmp_path / "a.jsonl").write_text('{"n": -0, "f": -0}\n{"n": 1, "f": -0.0}\n')
    columns = [converted(tmp_path / "a.jsonl").column(name) for name in "nf"]
    assert [str(one.tolist()) for one in columns] == ["[0, 1]", "[0.0, -0.0]"]


def test_a_line_without_a_key_that_another_object_has_is_no_bad_one(tmp_path, samples_in, left_out):
    """Where fields are chosen; else a part that comes late is, and the way out works for it, too."""
    rows = [{"s": {"x": 1}}] * 1000 + [{"s": {"x": 2, "z": 3}}, {"s": {"x": 4}, "late": None}]
    path = write(tmp_path / "a.jsonl", rows)
    assert [int(one["s.x"]) for one in samples_in(JsonLinesSource(path).only(["s.x"]))] == [1] * 1000 + [2, 4]
    left_out(path, {"row 1000": "`types={'s.z': 'float64'}` and `fill={'s.z': 0}`, say;"})
    found = samples_in(JsonLinesSource(path, types={"s.z": "float64"}, fill={"s.z": 0}))
    assert found[999:] == [{"s.x": 1, "s.z": 0}, {"s.x": 2, "s.z": 3}, {"s.x": 4, "s.z": 0}]


def test_a_value_in_place_of_an_object_whose_parts_are_chosen(tmp_path, samples_in, left_out):
    """It has no part, but is not missing either."""
    path = write(tmp_path / "a.jsonl", [{"s": {"x": 0.5}}, {"s": None}, {}] * 400 + [{"s": 5}])
    left_out(path, {"row 1200": "the key 's' is no object"}, fields=["s.x"])
    path = write(tmp_path / "b.jsonl", [{"s": 1, "s.x": 2}])  # a key with a dot
    assert [plain(one) for one in samples_in(JsonLinesSource(path).only(["s.x"]))] == [{"s.x": 2}]


def test_keys_with_dots_and_objects(tmp_path, samples_in):
    path = write(tmp_path / "a.jsonl", [{"a": 1, "a.b": 2, "s": None}, {"a": 3, "a.b": 4, "s": {"c": {"d": "x"}}}])
    found = samples_in(JsonLinesSource(path, fill={"s.c.d": ""}))
    assert [plain(one) for one in found] == [{"a": 1, "a.b": 2, "s.c.d": ""}, {"a": 3, "a.b": 4, "s.c.d": "x"}]
    path = write(tmp_path / "a.jsonl", [{"a": 1}, {"a.b": 2}])  # neither is an object
    found = samples_in(JsonLinesSource(path, fill={"a": 0, "a.b": 0}))
    assert [plain(one) for one in found] == [{"a": 1, "a.b": 0}, {"a": 0, "a.b": 2}]
    path = write(tmp_path / "a.jsonl", [{"a.b": 1, "a": {"b": 2}}])
    with pytest.raises(FormatError, match="it has a key twice"):
        JsonLinesSource(path).parts(1)


def test_a_line_that_is_too_long_is_refused_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setattr(json_lines, "_MAX_LINE_BYTES", 100)
    path = write(tmp_path / "a.jsonl", [{"text": "a" * 100}])
    with pytest.raises(FormatError, match="a line has 100 bytes or more. Write such samples as Parquet"):
        JsonLinesSource(path).parts(1)


@pytest.mark.parametrize(
    ("lines", "name", "kind", "wanted"),
    [
        (["[]"] * 2, "tokens", "uint16", [[]] * 2),
        (['{"\xe9\\"": null}'] * 1000 + ['{"\xe9\\"": 0.5}'], '\xe9"', "float64", [float("nan")] * 1000 + [0.5]),
    ],
)
def test_a_key_without_a_value_wants_its_type(tmp_path, samples_in, lines, name, kind, wanted):
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(OptionError, match=f"'{name}' has no value in the first lines. Say of what type .*: 'float64'"):
        JsonLinesSource(str(tmp_path / "a.jsonl")).parts(100)
    found = [one[name] for one in samples_in(JsonLinesSource(str(tmp_path / "a.jsonl"), types={name: kind}))]
    assert ({one.dtype.name for one in found}, str([one.tolist() for one in found])) == ({kind}, str(wanted))


@pytest.mark.parametrize(
    "deep", ["[" * 50_000 + "]" * 50_000, '{"a": ' * 50_000 + "1" + "}" * 50_000], ids=["lists", "objects"]
)
def test_what_is_nested_too_deeply_is_refused(tmp_path, left_out, deep):
    (tmp_path / "a.jsonl").write_text(f'{{"x": {deep}}}\n')
    with pytest.raises(FormatError, match="row 0: the line is no JSON: it is nested too deeply"):
        JsonLinesSource(str(tmp_path / "a.jsonl")).parts(1)
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n' * 1000 + f'{{"x": {deep}}}\n')
    assert len(left_out(tmp_path / "a.jsonl", {"row 1000": "the line is no JSON: it is nested too deeply"})) == 1000


@pytest.mark.parametrize("as_json", [[], ["c"]])
def test_texts_that_are_none_are_at_fault_alone(tmp_path, left_out, as_json):
    path = write(tmp_path / "a.jsonl", [{"t": "a", "c": 1}, {"t": "\ud800", "c": 1}, {"t": "b", "c": 1}])
    assert left_out(path, {"row 1": "surrogates not allowed"}, as_json=as_json).column("t") == ["a", "b"]


@pytest.mark.parametrize(("zone", "said"), [("", "no time zone"), ("Z", "UTC"), ("-01:00", "UTC")])
def test_units_of_times(tmp_path, converted, zone, said):
    path = write(tmp_path / "a.jsonl", [{"t": f"2020-01-01T00:00:01{zone}"}])
    dataset = converted(path, types={"t": "timestamp[ms]"})
    assert dataset.metadata["units"] == {"t": f"milliseconds since 1970-01-01 ({said})"}
    assert dataset[0]["t"].item() == 1577836801000 + 3_600_000 * (zone == "-01:00")


@pytest.mark.parametrize("late", [5, "2020-01-01T00:00:01Z", "noon", True])
def test_what_is_no_such_time_is_at_fault_alone(tmp_path, left_out, late):
    """A number may count anything."""
    path = write(tmp_path / "a.jsonl", [{"t": "2020-01-01T00:00:01"}, {"t": late}])
    reasons = {"row 1": "the key 't' cannot be timestamp"}
    assert len(left_out(path, reasons, types={"t": "timestamp[ms]"})) == 1


def test_no_lines(tmp_path):
    with pytest.raises(FormatError, match="there is not one line"):
        JsonLinesSource(write(tmp_path / "b.jsonl", [])).parts(1)


def test_damaged_files(tmp_path, survives_damage):
    path = write(tmp_path / "a.jsonl.gz", ROWS)
    assert survives_damage(path, lambda: JsonLinesSource(path)) > 15
