"""Text files, line by line and whole, and those that are none."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.conversion.recognise import recognise
from gdsload.conversion.sources import streams, text_files
from gdsload.conversion.sources.text_files import TextSource
from gdsload.errors import FormatError, OptionError
from tests.conversion.reading import made_by

LINES = st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=12), min_size=1, max_size=30)


@settings(max_examples=60)
@given(LINES, st.sampled_from(["\n", "\r\n"]), st.booleans(), st.integers(1, 200))
def test_every_line_wherever_it_is_cut(tmp_path_factory, samples_in, lines, end, last, target):
    lines = [line.removeprefix("\ufeff") for line in lines]
    path = tmp_path_factory.mktemp("t") / "a.txt"
    path.write_bytes((end.join(lines) + (end if last else "")).encode())
    expected = lines if last or lines[-1] else lines[:-1]
    if not path.stat().st_size:
        with pytest.raises(FormatError, match="not one line"):
            TextSource(str(path)).parts(target)
        return
    assert [one["text"] for one in samples_in(TextSource(str(path)), target)] == expected


def test_one_text_a_file(tmp_path, samples_in):
    (tmp_path / "pos").mkdir()
    for number in (10, 9):
        (tmp_path / "pos" / f"{number}.txt").write_bytes(f"\ufeffé{number}\r\n\n".encode())
    with pytest.raises(OptionError, match=r"it holds 2 text files\. Pass `each='file'`"):
        TextSource(str(tmp_path)).parts(1)
    assert [one["text"] for one in samples_in(TextSource(str(tmp_path), each="file"))] == ["é9\r\n\n", "é10\r\n\n"]
    found = samples_in(TextSource(str(tmp_path), each="line"))
    assert [one["text"] for one in found] == ["é9", "", "é10", ""]


@pytest.mark.parametrize(("encoding", "each", "texts"), [("latin-1", "line", ["é", "b"]), ("utf-16", "file", ["é\nb"])])
def test_encodings(tmp_path, samples_in, encoding, each, texts):
    (tmp_path / "a.txt").write_text("é\nb", encoding=encoding)
    source = TextSource(str(tmp_path / "a.txt"), encoding=encoding, each=each)
    assert [one["text"] for one in samples_in(source)] == texts


def test_a_line_that_cannot_be_decoded_is_at_fault_alone(tmp_path, left_out):
    lines = [b"line %d" % number for number in range(200)]
    lines[77] = b"\xff\xfe"
    (tmp_path / "a.txt").write_bytes(b"\n".join(lines))
    place = len(b"\n".join(lines[:77])) + 1
    dataset = left_out(tmp_path / "a.txt", {f"the line at byte {place}": "it is no utf-8"})
    assert dataset.column("text") == [f"line {number}" for number in range(200) if number != 77]
    (tmp_path / "b.txt").write_bytes(b"\xff")
    with pytest.raises(FormatError, match="it is no utf-8.*Pass `encoding="):
        made_by(TextSource(str(tmp_path / "b.txt"), each="file"))


def test_texts_without_end_are_refused(tmp_path, monkeypatch, samples_in):
    monkeypatch.setattr(streams, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(text_files, "_MAX_TEXT_BYTES", 100)
    (tmp_path / "a.txt").write_bytes(b"a" * 101)
    for each, match in (("line", "a line has 100 bytes or more"), ("file", "more than 100 bytes")):
        with pytest.raises(FormatError, match=match):
            samples_in(TextSource(str(tmp_path / "a.txt"), each=each))


@pytest.mark.parametrize("other", ["x.npy", "cat/1.png", "t.csv"])
def test_texts_beside_other_files_are_notes(tmp_path, put, other):
    put("README.txt", other)
    assert recognise(str(tmp_path)) != "text"
