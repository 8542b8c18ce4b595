"""Several archives in a file, links, and members that are apart: whatever a tar holds is read, refused or said."""

from __future__ import annotations

import gzip
import io
import shutil
import subprocess
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gdsload
from gdsload.conversion.sources.webdataset_tars import TarSource
from gdsload.errors import FormatError, SchemaError
from tests.conversion.reading import items_of

HARD, SYMBOLIC = tarfile.LNKTYPE, tarfile.SYMTYPE


def archive(members, form=tarfile.PAX_FORMAT):
    """The bytes of a tar: of a member its name and content, or its name, type and what it leads to."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
        for name, *content in members:
            info = tarfile.TarInfo(name)
            if len(content) == 2:
                info.type, info.linkname = content
                tar.addfile(info)
            else:
                info.size = len(content[0])
                tar.addfile(info, io.BytesIO(content[0]))
    return stream.getvalue()


def read(file, **options):
    return items_of(TarSource(str(file), **options))


def texts(file):
    return [(one["key"], one["txt"]) for one in (item.make() for item in read(file))]


def written(folder, content, packed=False):
    path = folder / ("a.tar.gz" if packed else "a.tar")
    path.write_bytes(gzip.compress(content) if packed else content)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("tars")


@given(
    st.lists(st.lists(st.binary(max_size=1500).map(bytes.hex), max_size=3), min_size=1, max_size=4),
    st.lists(st.integers(0, 12_000), min_size=4, max_size=4),
    st.booleans(),
)
def test_all_archives_of_a_file_are_read(place, archives, zeros, packed):
    """Whatever number of zeros is between them, and whether each is packed by itself."""
    expected = [(f"{n}-{k}", text) for n, one in enumerate(archives) for k, text in enumerate(one)]
    pieces = [
        archive([(f"{n}-{k}.txt", text.encode()) for k, text in enumerate(one)]) + bytes(zeros[n])
        for n, one in enumerate(archives)
    ]
    path = place / ("a.tar.gz" if packed else "a.tar")
    path.write_bytes(b"".join(map(gzip.compress, pieces)) if packed else b"".join(pieces))
    assert texts(path) == expected


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("more", [b"x", b"\0\0x", b"PK\3\4" * 200, bytes(511) + b"x" * 2000])
def test_what_comes_after_an_archive_and_is_none_is_an_error(tmp_path, packed, more):
    path = written(tmp_path, archive([("0.txt", b"a")]) + more, packed)
    said = r"after the end of an archive there is something else, at byte 10\d+.*head -c 10\d+|truncated"
    with pytest.raises(FormatError, match=said):
        read(path)


@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_header_is_not_taken_for_the_end(tmp_path, packed):
    content = bytearray(archive([(f"{n}.txt", b"a") for n in range(4)]))
    content[2048 + 150] ^= 1  # the third one's checksum
    with pytest.raises(FormatError, match="it is damaged at byte 2048: bad checksum"):
        read(written(tmp_path, bytes(content), packed))


@pytest.mark.parametrize("shape", ["cp -al", "cp -as"])
def test_a_link_spoils_its_sample_and_the_command_makes_files(tmp_path, monkeypatch, shape):
    """As GNU tar packs a folder of links."""
    if shutil.which("tar") is None:
        pytest.skip("GNU tar is not here")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in" / "a").mkdir(parents=True)
    for n in range(3):
        (tmp_path / "in" / "a" / f"{n}.txt").write_text(str(n))
        link = tmp_path / "in" / f"b{n}.txt"
        link.hardlink_to(tmp_path / "in" / "a" / f"{n}.txt") if shape == "cp -al" else link.symlink_to(f"a/{n}.txt")
    subprocess.run(["tar", "--sort=name", "-cf", "links.tar", "-C", "in", "."], check=True)
    *good, bad = read("links.tar")
    assert [item.make()["txt"] for item in good[:3]] == ["0", "1", "2"]
    with pytest.raises(FormatError, match="the sample cannot be taken: './b2.txt' is a link to") as caught:
        bad.make()
    subprocess.run(str(caught.value).partition("files of links: ")[2].rstrip(), shell=True, check=True)
    assert texts("whole.tar") == [(f"{folder}{n}", str(n)) for folder in ("a/", "b") for n in range(3)]


def test_members_apart_are_refused_with_a_command_that_loses_none(tmp_path, converted, monkeypatch):
    members = [(f"s/{n:03}.{name}", b"%d" % n) for name in ("txt", "cls") for n in range(99, -1, -1)]
    (tmp_path / "a b").mkdir()
    path = written(tmp_path / "a b", archive(members[:150]) + archive(members[150:]))
    for on_error in ("stop", "skip"):
        said = r"sample 's/099' are not side by side: 's/099.cls' comes after"
        with pytest.raises(FormatError, match=said) as caught:
            gdsload.convert(path, tmp_path / "no", on_error=on_error, max_skipped="100%", workers=1)
    assert "on_error" not in str(caught.value)
    if shutil.which("tar") is None:
        pytest.skip("GNU tar is not here")
    monkeypatch.chdir(tmp_path)
    subprocess.run(str(caught.value).partition("which loses none: ")[2], shell=True, check=True)
    dataset = converted("sorted.tar")
    assert dataset.column("key") == [f"s/{n:03}" for n in range(100)]
    assert dataset.column("txt") == [str(n) for n in dataset.column("cls").tolist()] == [str(n) for n in range(100)]


@pytest.mark.parametrize("how", [{"on_error": "skip"}, {"fields": ["txt"]}])
@pytest.mark.parametrize("packed", [False, True])
def test_members_apart_among_whole_samples(tmp_path, packed, how):
    """The first halves are unlike the other samples, and the second ones may come late: half of one is not left out."""
    members = [(f"{n:03}.{name}", b"%d" % n) for n in range(300) for name in ("txt", "cls")]
    path = written(tmp_path, archive([*members[:7], *members[8:], members[7]]), packed)
    with pytest.raises(FormatError, match="sample '003' are not side by side: '003.cls' comes after other samples"):
        gdsload.convert(path, tmp_path / "no", workers=1, **how)
    with pytest.raises(SchemaError, match=r"003 of a.tar.* has the fields 'key', 'txt', an earlier sample"):
        gdsload.convert(path, tmp_path / "other", workers=1)


def test_images_in_one_archive_and_labels_in_the_next(tmp_path):
    """They are no two halves of a dataset; but archives with samples that are called alike are."""
    images, labels = ([(f"{n}.{name}", b"%d" % n) for n in range(3)] for name in ("txt", "cls"))
    with pytest.raises(FormatError, match="sample '0' are not side by side: '0.cls' comes after other samples"):
        read(written(tmp_path, archive(images) + archive(labels)))
    with pytest.raises(FormatError, match="sample '1' are not side by side: '1.cls' comes after other samples"):
        read(written(tmp_path, archive(images[::-1]) + archive(labels)))
    assert len(read(written(tmp_path, archive(images) * 2))) == 6
    whole = read(written(tmp_path, archive(images[:1]) + archive(labels[:1])))  # an archive for each member
    assert [item.make() for item in whole] == [{"key": "0", "txt": "0", "cls": 0}]


def test_a_member_that_is_there_twice_is_named(tmp_path):
    """As `tar -r` leaves one that has changed: to unpack it would lose one of the two."""
    path = written(tmp_path, archive([("0.txt", b"old"), ("1.txt", b"b"), ("0.txt", b"new")]))
    with pytest.raises(FormatError, match=r"'0.txt' is in the tar file twice.*each with another name"):
        read(path)


def test_a_further_volume_is_refused(tmp_path):
    info = tarfile.TarInfo("0.txt")
    info.type, info.size = b"M", 4
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + b"rest".ljust(512, b"\0") + bytes(1024))
    with pytest.raises(FormatError, match=r"a.tar: the tar file continues '0.txt' of another volume.*tar -xM"):
        read(tmp_path / "a.tar")


def test_what_is_left_out_is_said_once(tmp_path):
    """Files that are of no sample; folders and labels of archives are no files."""
    members = [
        ("README", b"about it"), ("d", tarfile.DIRTYPE, ""), ("label", b"V", ""), ("._0.txt", b"\0\5\x16\7"),
        ("__MACOSX/._0.txt", b"\0\5"), ("d/.ipynb_checkpoints/0-checkpoint.txt", b"old"), ("@eaDir/0.txt", b"thumb"),
        ("0.txt", b"a"), ("_1.txt", b"b"), (".DS_Store", b""), ("to", SYMBOLIC, "0.txt"),
    ]  # fmt: skip
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.tar").write_bytes(archive(members))
    (tmp_path / "in" / "b.tar").write_bytes(archive([("2.txt", b"c"), *members[:6]]))
    report = gdsload.convert(tmp_path / "in", tmp_path / "out", workers=2)
    assert report.notes == ("tar members that are hidden or have no ending are left out: 'README' and 10 more.",)
    assert gdsload.ShardDataset(tmp_path / "out").column("txt") == ["a", "b", "c"]


def test_what_is_left_out_is_said_where_it_is_all(tmp_path):
    path = written(tmp_path, archive([("a", b"x"), ("__MACOSX/0.txt", b"x")]))
    with pytest.raises(FormatError, match="it has none; tar members .* no ending are left out: 'a' and 1 more"):
        gdsload.convert(path, tmp_path / "out", workers=1)


@pytest.mark.parametrize("packed", [False, True])
def test_what_comes_after_is_cut_off_by_the_command(tmp_path, monkeypatch, packed):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FormatError) as refused:
        read(written(tmp_path, archive([("0.txt", b"a")]) + b"x" * 512, packed))
    subprocess.run(str(refused.value.remedy).partition("cut it off: ")[2], shell=True, check=True)
    assert texts(tmp_path / "cut.tar") == [("0", "a")]


@pytest.mark.parametrize("ending", ["pgm", "PBM", "pnm", "bmp", "tif", "tiff", "jpeg"])
def test_pictures_are_those_that_are_read_as_files(tmp_path, ending):
    pictures = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    form = {"tif": "TIFF", "tiff": "TIFF", "bmp": "BMP", "jpeg": "JPEG"}.get(ending, "PPM")
    pictures.new("L", (3, 2)).save(stream, form)
    (item,) = read(written(tmp_path, archive([(f"0.{ending}", stream.getvalue())])), mode="L")
    assert item.make()[ending.lower()].shape == (1, 2, 3)


@pytest.mark.parametrize("end", [0, 512])
def test_a_file_without_a_mark_at_its_end_is_said(tmp_path, end):
    """It may be cut short between two members, and nobody knows."""
    path = written(tmp_path, archive([("0.txt", b"a"), ("1.txt", b"b")])[: 2048 + end])
    report = gdsload.convert(path, tmp_path / "out", workers=1)
    assert report.samples == 2
    assert report.notes == (() if end else ("tar files without a mark at their end may be cut short: 'a.tar'.",))
