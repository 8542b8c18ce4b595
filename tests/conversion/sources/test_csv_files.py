"""CSV files, written by Python's own module, and hostile ones."""

import csv
import gzip
import os
import pickle
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import gdsload
import gdsload.conversion.runner
from gdsload.conversion.part import samples_of
from gdsload.conversion.sources import csv_cells
from gdsload.conversion.sources.csv_files import CsvSource
from gdsload.errors import FormatError, GdsloadError, OptionError, ReadError
from tests.conversion.reading import items_of, rows_of

ROWS = 25


def write(path, names, rows, **options):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, **options).writerows([names, *rows])
    return str(path)


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "images" / "deep").mkdir(parents=True)
    rows = []
    for number in range(ROWS):
        Image.fromarray(rng.integers(0, 256, (6, 4, 3), np.uint8)).save(tmp_path / f"images/deep/{number}.png")
        np.save(tmp_path / f"{number}.npy", rng.random((2, 3), np.float32))
        rows.append([f"images/deep/{number}.png", f"./{number}.npy", number % 3, number / 4, f"a, “{number}”\nb"])
    write(tmp_path / "all.csv", ["path", "mask", "label", "weight", "text"], rows)
    return tmp_path


def test_paths_numbers_and_texts(folder, converted):
    """In parts that find their rows again, also in another process."""
    source = pickle.loads(pickle.dumps(CsvSource(str(folder / "all.csv"))))
    parts = source.parts(1000)
    assert (len(parts) > 3, sum(part.samples for part in parts)) == (True, ROWS)
    items = [item for part in parts for item in source.read(part)]
    assert [item.key for item in items] == [f"line {2 + 2 * number}" for number in range(ROWS)]  # a text has two lines
    for number, sample in enumerate(item.make() for item in items):
        assert list(sample) == ["path", "mask", "label", "weight", "text"]
        pixels = np.asarray(Image.open(folder / f"images/deep/{number}.png"))
        assert np.array_equal(sample["path"], pixels.transpose(2, 0, 1))
        assert np.array_equal(sample["mask"], np.load(folder / f"{number}.npy"))
        assert (sample["label"], sample["weight"], sample["text"]) == (number % 3, number / 4, f"a, “{number}”\nb")
    kinds = [field.dtype.name for field in converted(folder / "all.csv", shard_bytes=500).schema.values()]
    assert kinds == ["uint8", "float32", "int64", "float64", "uint8"]
    before = source.describe()
    os.unlink(folder / "3.npy")
    assert source.describe() != before


@given(
    rows=st.lists(
        st.tuples(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), st.integers(-9, 9)),
        min_size=1,
        max_size=20,
    ),
    step=st.integers(1, 200),
    end=st.sampled_from(["\n", "\r\n"]),
    bom=st.booleans(),
)
def test_what_is_written_is_read(tmp_path_factory, rows, step, end, bom):
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    write(path, ["text", "n"], rows, lineterminator=end, quoting=csv.QUOTE_NONNUMERIC)
    if bom:
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    source = CsvSource(str(path), types={"text": "str"})
    assert rows_of(source, step) == [{"text": text, "n": number} for text, number in rows]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "-2", ""], "int"),
        (["1", " 2 "], "int"),
        (["1", "2.5", "-1e3", ".5", "NaN", "-inf"], "float"),
        (["1", "18446744073709551615"], "uint"),
        (["true", "False"], "bool"),
        (["1", "true"], "str"),
        (["1_000"], "str"),
        (["1", "a"], "str"),
        (["a.png", "b.npy", "c.JPG"], "file"),
        (["a.png", "b.txt"], "str"),
        (["", ""], "str"),
    ],
)
def test_types_by_the_first_values(tmp_path, cells, expected):
    path = write(tmp_path / "t.csv", ["x", "y"], [[cell, "a"] for cell in cells])
    assert CsvSource(path).describe()["columns"] == {"x": expected, "y": "str"}
    assert CsvSource(path, types={"x": "str"}).describe()["columns"] == {"x": "str", "y": "str"}


def test_bad_rows_are_alone(tmp_path, left_out):
    lines = ["n,text", "1,a", "2", "3,c,d", "x,e", ",f", '5,"g"h', "6,\xff", "7,i", "7,\xff,8", '8,"j']
    (tmp_path / "t.csv").write_bytes("\n".join(lines).encode("latin-1"))
    reasons = {
        "line 3": "Expected 2 columns, got 1: 2",
        "line 4": "Expected 2 columns, got 3: 3,c,d",
        "line 5": "'x', which is no int",
        "line 6": "column 'n' has no value",
        "line 7": "a quote inside a quoted cell is not doubled",
        "line 8": "the file is not UTF-8: b'6,\\xff\\n'. Pass `encoding='latin-1'`, say",
        "line 10": "Expected 2 columns, got 3: 7,",
        "line 11": "a quote in it is never closed",
    }
    dataset = left_out(tmp_path / "t.csv", reasons, types={"n": "int"})
    assert [(int(sample["n"]), sample["text"]) for sample in dataset] == [(1, "a"), (7, "i")]


def test_a_file_in_latin_1_says_how_it_is_read(tmp_path, converted):
    path = tmp_path / "t.csv"
    for content, said in (("n,caf\xe9\n1,a\n", "t.csv: "), ("n,t\n1,caf\xe9\n", "t.csv, line 2: ")):
        path.write_bytes(content.encode("latin-1"))
        with pytest.raises(GdsloadError, match=f"{said}the file is not UTF-8: .*Pass `encoding='latin-1'`, say"):
            gdsload.convert(path, tmp_path / "out", workers=1)
    assert len(converted(path, fields=["n"])) == 1
    assert converted(path, encoding="latin-1")[0]["t"] == "caf\xe9"


CELLS = (
    st.integers(-(2**63), 2**64).map(str)
    | st.floats().map(str)
    | st.text(max_size=5)
    | st.sampled_from([
        "", " 2 ", "+3", "007", "1_000", "0x1F", "1e5", "1.", ".5", "nan", "-INF", "nan(1)", "true", "False", "TRUE", "yes",
        'a"b', '"x"y"', '"', '""', "\r", "\0", "a\r\nb", "\ufeff", "0" * 25 + "1", "9" * 25, '"a,b"', '"a\n""b"', ' "a"',
    ])
)  # fmt: skip
TYPES = {"i": "int", "u": "uint", "f": "float", "b": "bool", "s": "str"}
GOOD = st.tuples(
    st.integers(-(2**63), 2**63 - 1).map(str),
    st.integers(0, 2**64 - 1).map(str),
    st.floats().map(str) | st.just(""),
    st.sampled_from(["true", "false"]),
    st.text(st.characters(exclude_categories=["Cs"])).map(lambda text: '"' + text.replace('"', '""') + '"'),
)
BAD = st.lists(CELLS, min_size=1, max_size=6) | st.tuples(*[CELLS] * 5)


def outcomes(items):
    found = []
    for item in items:
        try:
            found += [item.make()] if item.count is None else [one.make() for one in samples_of(item)]
        except (FormatError, gdsload.SchemaError) as error:
            found.append(str(error))
    return [one if isinstance(one, str) else {name: repr(value) for name, value in one.items()} for one in found]


@settings(max_examples=50)
@given(
    rows=st.lists(GOOD, max_size=8).flatmap(
        lambda good: st.lists(BAD, max_size=2).map(lambda bad: [*good, *bad, *good])
    ),
    stretch=st.integers(1, 2000),
    end=st.sampled_from(["\n", "\r\n", "\n\n"]),
    last=st.booleans(),
    fill=st.sampled_from([{}, {"i": -1, "s": "none"}]),
)
def test_rows_are_the_same_wherever_the_text_is_cut(tmp_path_factory, rows, stretch, end, last, fill):
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    text = end.join(",".join(cells) for cells in [TYPES, *rows])
    path.write_bytes((text + (end if last else "")).encode("utf-8", "surrogatepass"))
    source = CsvSource(str(path), types=TYPES, fill=fill)
    rows = [cells for cells in rows if cells != [""]]  # an empty line is no row, and a file without rows an error
    wanted = outcomes(items_of(source)) if rows else []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(csv_cells, "STRETCH_BYTES", stretch)
        assert (outcomes(items_of(source, 100)) if rows else []) == wanted


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('a,b\n5" pipe,x"y\n', [('5" pipe', 'x"y')]),  # quotes in a cell that has none around it
        ("a,b\n\ufeff1,\ufeff\n", [("\ufeff1", "\ufeff")]),
        ('a\n""\nb', [("",), ("b",)]),
        ("a,b\n1,2020-01-01", [("1", "2020-01-01")]),
    ],
)
def test_quotes_marks_and_empty_lines(tmp_path, text, rows):
    (tmp_path / "t.csv").write_bytes(text.encode())
    source = CsvSource(str(tmp_path / "t.csv"), types={"a": "str"})
    assert [tuple(sample.values()) for sample in rows_of(source)] == rows


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('"x" ,2', "a quote inside a quoted cell is not doubled"),
        ("x\ry,2", "a carriage return alone is in it"),
        ("\r,2", "a carriage return alone"),
    ],
)
def test_rows_of_which_arrow_would_make_something(tmp_path, row, reason):
    (tmp_path / "t.csv").write_text(f"a,b\nu,1\n{row}\nv,3\n", newline="")
    good, bad, other = items_of(CsvSource(str(tmp_path / "t.csv"), types={"b": "str"}))
    with pytest.raises(FormatError, match=f"line 3: the row cannot be read: {reason}"):
        bad.make()
    assert (good.make()["a"], other.make()["a"], other.key) == (["u"], ["v"], "line 4")


def test_ordinary_rows_come_many_at_once(tmp_path):
    """Or it would be a hundred times slower; and what is out of the ordinary costs its own stretch alone."""
    rows = [[n, n / 4, f"te\nxt, {n}"] for n in range(2000)]
    path = write(tmp_path / "t.csv", ["i", "f", "s"], rows, quoting=csv.QUOTE_NONNUMERIC)
    (item,) = items_of(CsvSource(path))
    assert (item.count, item.key) == (2000, "lines 2 to 4000")
    batch = item.make()
    assert (batch["i"].tolist(), batch["f"].tolist(), batch["s"]) == tuple(map(list, zip(*rows, strict=True)))


@pytest.mark.parametrize("text", ["x" * 200_000, 'line\n"quoted", ' * 20_000, "\r" * 200_000])
def test_cells_of_any_length(tmp_path, text):
    path = write(tmp_path / "t.csv", ["t", "y"], [["a", 1]] * 3000 + [[text, 2], ["b", 3]])
    found = rows_of(CsvSource(path))
    assert ([one["t"] for one in found[-2:]], len(found)) == ([text, "b"], 3002)


def test_empty_cells(tmp_path, converted, left_out):
    path = write(tmp_path / "t.csv", ["f", "i", "s"], [[1.5, 1, "a"], ["", "", ""]])
    said = "line 3: column 'i' has no value, or one with a hole. Say what stands for it, `fill={'i': -1}`"
    left_out(path, {"line 3": said})
    dataset = converted(path, fill={"i": -1, "s": "none"})
    assert (dataset.column("i").tolist(), dataset.column("s")) == ([1, -1], ["a", "none"])
    assert np.isnan(dataset.column("f").tolist()).tolist() == [False, True]
    assert converted(path, fill={"i": -1}).column("s") == ["a", ""]
    with pytest.raises(OptionError, match="fill has 9007199254740993 for field 'f', which is double"):
        CsvSource(path, fill={"f": 2**53 + 1}).parts(1)


@pytest.mark.parametrize(
    ("late", "kind"), [("1.5", "float"), (str(2**64 - 1), "uint"), (str(2**70), "str"), ("a", "str")]
)
def test_a_cell_of_another_type_that_comes_late(tmp_path, left_out, converted, late, kind):
    path = write(tmp_path / "t.csv", ["n"], [[1]] * 1000 + [[late]])
    left_out(path, {"line 1002": f"column 'n' has {late!r}, which is no int. If the column is of another type, say so"})
    assert len(converted(path, types={"n": kind})) == 1001


MAY_BE_MISSING = (
    "'x' is taken for texts, as {!r} is among its values: if that stands for a missing one, leave the cell empty"
)
OTHER_DELIMITER = "there is one column, 'a;b': if cells are between ';', pass `delimiter=';'`"


@pytest.mark.parametrize(
    ("content", "notes", "ways_out"),
    [
        ("x,y\n00501,0\n10001,10\n", ["'x' is taken for int, but '00501' begins with"], {"types": {"x": "str"}}),
        ("a;b\n1;2\n3;4\n", [OTHER_DELIMITER], {"delimiter": ";"}),
        ("x,y\n1,1\nNA,1\n2.5,1\n,1\n", [MAY_BE_MISSING.format("NA")], {"types": {"x": "str"}}),
        ("x,y\ntrue,1\nNULL,1\n", [MAY_BE_MISSING.format("NULL")], {"types": {"x": "str"}}),
        ("x,y\nNA,1\nnone,1\n", [], {}),
        ("x,y\nNA,1\n1,1\na,1\n", [], {}),
        ("x,y\n1,1\nNaN,1\n", [], {}),
    ],
)
def test_what_may_be_taken_for_something_else_is_noted(tmp_path, content, notes, ways_out):
    (tmp_path / "t.csv").write_text(content)
    found = CsvSource(str(tmp_path / "t.csv")).notes()
    assert [one[: len(wanted)] for one, wanted in zip(found, notes, strict=True)] == notes
    assert gdsload.conversion.runner.plan(tmp_path / "t.csv", workers=1, **ways_out).notes == ()


def test_a_table_of_pandas_with_its_index(tmp_path, converted):
    frame = pytest.importorskip("pandas").DataFrame({"x": [1.5, None], "flag": [True, False]}, index=[7, 9])
    frame.to_csv(tmp_path / "t.csv")
    found = [{name: value.item() for name, value in sample.items()} for sample in converted(tmp_path / "t.csv")]
    assert str(found) == str([{"index": 7, "x": 1.5, "flag": True}, {"index": 9, "x": float("nan"), "flag": False}])


@pytest.mark.parametrize(("name", "encoding"), [("t.csv.gz", "utf-8"), ("t.csv", "cp1252"), ("t.tsv.gz", "utf-16")])
def test_packed_files_and_other_encodings(tmp_path, converted, name, encoding):
    between = "\t" if "tsv" in name else ","
    content = "".join(f"{n}{between}é{n}\n" for n in range(300))
    content = f"n{between}text\n{content}".encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert [sample["text"] for sample in converted(tmp_path / name, encoding=encoding)] == [f"é{n}" for n in range(300)]
    if name.endswith("gz"):
        (tmp_path / name).write_bytes(gzip.compress(content)[:-9])
        with pytest.raises(FormatError, match="the file cannot be read"):
            gdsload.convert(tmp_path / name, tmp_path / "again", workers=1, encoding=encoding)


def test_a_folder_of_pictures_with_a_table_is_a_table(converted, folder):
    """And what is not chosen is not opened."""
    os.unlink(folder / "all.csv")
    for path in folder.glob("*.npy"):
        path.unlink()
    rows = [[f"images/deep/{n}.png", n, "no.png"] for n in range(ROWS)]
    write(folder / "labels.csv", ["path", "label", "gone"], rows)
    assert converted(folder, fields=["label"]).column("label").tolist() == list(range(ROWS))


@pytest.mark.parametrize("follow_links", [False, True])
@pytest.mark.parametrize("cell", ["../out.npy", "{root}/out.npy", "l.npy", "l/out.npy"])
def test_nothing_outside_the_folder_is_read_but_by_links_if_asked_for(tmp_path, cell, follow_links):
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "out.npy", np.zeros(3))
    np.save(tmp_path / "in" / "in.npy", np.ones(3))
    (tmp_path / "in" / "l.npy").symlink_to(tmp_path / "out.npy")
    (tmp_path / "in" / "l").symlink_to(tmp_path)
    path = write(tmp_path / "in" / "t.csv", ["x"], [[cell.format(root=tmp_path)], ["in.npy"]])
    other, good = items_of(CsvSource(path, follow_links=follow_links))
    if follow_links and cell.startswith("l"):
        assert other.make()["x"].tolist() == [0, 0, 0]
    else:
        with pytest.raises(FormatError, match="leads out of the folder"):
            other.make()
    assert good.make()["x"].tolist() == [1, 1, 1]


def test_files_beside_tables_in_the_folder_that_the_program_is_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        np.save(f"{name}.npy", np.full(3, ord(name)))
        write(tmp_path / f"{name}.csv", ["x"], [[f"{name}.npy"]])
    assert [sample["x"].tolist() for sample in rows_of(CsvSource("{a,b}.csv"))] == [[97] * 3, [98] * 3]


@pytest.mark.parametrize(
    ("name", "reason"),
    [("none.npy", "no file"), ("fifo.npy", "no file"), ("objects.npy", "pickle"), ("cut.npy", "promises"), ("text.png", "decoded"), ("a\0.npy", "is no name of a file")],
)  # fmt: skip
def test_files_that_cannot_be_read(tmp_path, name, reason):
    os.mkfifo(tmp_path / "fifo.npy")  # to open it would wait for ever
    np.save(tmp_path / "objects.npy", np.array([None]), allow_pickle=True)
    np.save(tmp_path / "cut.npy", np.zeros(100))
    os.truncate(tmp_path / "cut.npy", 200)
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(FormatError, match=reason):
        rows_of(CsvSource(write(tmp_path / "t.csv", ["x"], [[name]])))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "it is empty"),
        ("a,,b\n1,2,3", "column 2 has no name"),
        (",index\n1,2", "column 1 has no name"),
        ("a, a\n1,2", "two columns are called 'a'"),
        ("cat/1.png,0\ncat/2.png,1", "are values"),
        ("0,1.5\n2,2.5", "are values"),
        ("99999999999999999999,1\n2,3", "are values"),
        ('"a,b', "a quote in it is never closed"),
        ("a,b\n", "not one row"),
        ("a\n" + "x" * 5000, "line 2 has 5000 bytes"),
        ("a,b\r1,2\r", "a carriage return alone is in it"),
    ],
)
def test_files_that_are_no_table(tmp_path, monkeypatch, content, reason):
    monkeypatch.setattr(csv_cells, "MAX_ROW_BYTES", 5000)
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(FormatError, match=reason):
        CsvSource(str(tmp_path / "t.csv")).parts(1)


def test_several_files_and_other_delimiters(tmp_path):
    write(tmp_path / "t-10.tsv", ["x", "y"], [[3, "c"]], delimiter="\t")
    write(tmp_path / "t-9.csv", ["x", "y"], [[1, "a"], [2, "b"]])
    assert rows_of(CsvSource(str(tmp_path))) == [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}, {"x": 3, "y": "c"}]
    for mark in ";\t|":
        path = write(tmp_path / "o.csv", ["a", "b"], [["1,5", 2], ["2,5", 3]], delimiter=mark)
        way = f"If cells are between {mark!r}, pass `delimiter={mark!r}`. Mend"
        with pytest.raises(ReadError, match=re.escape(way)):
            gdsload.convert(path, tmp_path / "out", workers=1)
        assert rows_of(CsvSource(path, delimiter=mark))[1] == {"a": "2,5", "b": 3}


BEYOND = "has the number {}, which would be rounded"


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (["1", str(2**64), str(2**64 + 1)], BEYOND.format(2**64 + 1)),
        (["-1", str(2**63 + 1)], BEYOND.format(2**63 + 1)),
        (["-1", str(2**63)], BEYOND.format(2**63)),  # float64 has both, but whole numbers become no others
        (["7", "9" * 30], BEYOND.format("9" * 30)),
        *[([beside, "9007199254740993", "9007199254740992"], BEYOND.format("9007199254740993")) for beside in ("nan", "0.5")],
        *[(["0.5", cell], BEYOND.format(cell.strip()[:100])) for cell in ("9007199254740993.", "-9007199254740993.0", "9" * 5000)],
        (["0.5", " 9007199254740993 "], BEYOND.format("9007199254740993")),
        (["0.5", "1e400"], BEYOND.format("1e400")),
        (["-inf", "-1.5E+309"], BEYOND.format("-1.5E+309")),
    ],
)  # fmt: skip
def test_numbers_that_float64_would_round_are_refused(tmp_path, left_out, converted, cells, said):
    """Ids that differ would become the same. Also where they come late, and rows are read many at once."""
    path = write(tmp_path / "t.csv", ["x", "n"], [[cell, 1] for cell in cells])
    way = "Keep them as texts, `types={'x': 'str'}`; or round them, `types={'x': 'float'}`."
    with pytest.raises(FormatError, match=re.escape(f"column 'x' {said}") + f".*{re.escape(way)}"):
        CsvSource(path).parts(100)
    assert converted(path, types={"x": "str"}).column("x") == cells
    assert str(converted(path, types={"x": "float"}).column("x").tolist()) == str([float(cell) for cell in cells])
    assert len(converted(path, fields=["n"])) == len(cells)
    late = write(tmp_path / "late.csv", ["x", "n"], [["0.5", 1]] * 1000 + [[cell, 1] for cell in cells[1:2]])
    if cells[0] == "0.5":
        left_out(late, {"line 1002": f"column 'x' {said}"})


def test_large_floats_come_many_at_once(tmp_path):
    path = write(tmp_path / "t.csv", ["x"], [["0.5"], ["1e300"], ["12345678901234567890.5"], [str(2**80)], [""]])
    (item,) = items_of(CsvSource(path))
    assert item.make()["x"].tolist()[:4] == [0.5, 1e300, 12345678901234567890.5, 2.0**80]
