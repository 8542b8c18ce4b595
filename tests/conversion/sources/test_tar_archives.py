"""More after an archive, links, and members that are apart: a tar file is read, or refused, or a note tells."""

import gzip
import io
import re
import shutil
import subprocess
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gdsload
from gdsload.conversion.sources.webdataset_tars import TarSource
from gdsload.errors import ConversionError, FormatError, SchemaError
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


def run(error):
    """Run the command that an error has in backticks, as it is pasted into a shell; its exit status."""
    (command,) = re.findall("`((?:mkdir|head|gzip) [^`]*)`", str(error))
    return subprocess.run(command, shell=True, check=False, stderr=subprocess.DEVNULL).returncode


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("tars")


@given(st.lists(st.binary(max_size=1500).map(bytes.hex), min_size=1, max_size=3), st.integers(0, 12_000), st.booleans())
def test_an_archive_is_read_whatever_zeros_fill_it_up(place, contents, zeros, packed):
    expected = [(f"{n}", text) for n, text in enumerate(contents)]
    content = archive([(f"{n}.txt", text.encode()) for n, text in expected]) + bytes(zeros)
    assert texts(written(place, content, packed)) == expected


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("zeros", [0, 700, 20_000])
@pytest.mark.parametrize("second", [archive([("0.txt", b"b")]), b"x", b"PK\3\4" * 200])
def test_what_comes_after_an_archive_is_refused_and_cut_off_by_the_command(
    tmp_path, monkeypatch, second, zeros, packed
):
    """Also a second archive, whose members may be called as those of the first are."""
    monkeypatch.chdir(tmp_path)
    whole = archive([("0.txt", b"a")]) + bytes(zeros) + second
    said = rf"after the end of an archive there is something else, at byte {len(whole) - len(second)}\."
    with pytest.raises(FormatError, match=said) as refused:
        read(written(tmp_path, whole, packed))
    assert run(refused.value) == 0
    assert texts("first.tar") == [("0", "a")]
    assert (tmp_path / "rest.tar").read_bytes() == second


@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_header_is_not_taken_for_the_end(tmp_path, packed):
    content = bytearray(archive([(f"{n}.txt", b"a") for n in range(4)]))
    content[2048 + 150] ^= 1  # the third one's checksum
    with pytest.raises(FormatError, match="it is damaged at byte 2048: bad checksum"):
        read(written(tmp_path, bytes(content), packed))


needs_tar = pytest.mark.skipif(shutil.which("tar") is None, reason="GNU tar is not here")


@needs_tar
@pytest.mark.parametrize("on_error", ["stop", "skip"])
@pytest.mark.parametrize("shape", ["cp -al", "cp -as"])
def test_a_link_spoils_its_sample_and_the_command_makes_files(tmp_path, monkeypatch, shape, on_error):
    """As GNU tar packs a folder of links; of several archives, with members of the same names and long paths, each."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path.joinpath("tars", *["a long 'name' of a folder" * 4] * 3)
    folder.mkdir(parents=True)
    (tmp_path / "in" / "a").mkdir(parents=True)
    link = tmp_path / "in" / "b.txt"
    (tmp_path / "in" / "a" / "0.txt").touch()
    link.hardlink_to(tmp_path / "in" / "a" / "0.txt") if shape == "cp -al" else link.symlink_to("a/0.txt")
    for name in ("x", "y"):
        (tmp_path / "in" / "a" / "0.txt").write_text(name)
        subprocess.run(["tar", "--sort=name", "-cf", str(folder / f"{name}.tar"), "-C", "in", "."], check=True)
    for name in ("x", "y"):
        how = {"workers": 1, "on_error": on_error, "max_skipped": 1, "restart": True}
        if on_error == "stop":
            with pytest.raises(ConversionError, match=r"'\./b\.txt' is a link to") as caught:
                gdsload.convert(folder / f"{name}.tar", tmp_path / "no", **how)
            error = caught.value
        else:
            (skipped,) = gdsload.convert(folder / f"{name}.tar", tmp_path / name, **how).skipped
            error = skipped.reason
        assert run(error) == 0
        assert texts(f"sorted-{name}.tar") == [("a/0", name), ("b", name)]


@needs_tar
def test_members_apart_are_refused_with_a_command_that_loses_none(tmp_path, converted, monkeypatch):
    members = [(f"s/{n:03}.{name}", b"%d" % n) for name in ("txt", "cls") for n in range(99, -1, -1)]
    (tmp_path / "a b").mkdir()
    path = written(tmp_path / "a b", archive(members))
    for on_error in ("stop", "skip"):
        said = r"sample 's/099' are not side by side: 's/099.cls' comes after"
        with pytest.raises(FormatError, match=said) as caught:
            gdsload.convert(path, tmp_path / "no", on_error=on_error, max_skipped="100%", workers=1)
    assert "on_error" not in str(caught.value)
    monkeypatch.chdir(tmp_path)
    assert run(caught.value) == 0
    dataset = converted("sorted-a.tar")
    assert dataset.column("key") == [f"s/{n:03}" for n in range(100)]
    assert dataset.column("txt") == [str(n) for n in dataset.column("cls").tolist()] == [str(n) for n in range(100)]


@needs_tar
def test_the_command_stops_at_members_of_one_name(tmp_path, monkeypatch):
    """As `tar -r` leaves a member that has changed: to unpack it would lose one of the two."""
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, archive([("0.txt", b"old"), ("1.txt", b"b"), ("0.txt", b"new")]))
    with pytest.raises(FormatError, match="sample '0' are not side by side") as caught:
        read(path)
    assert run(caught.value) != 0
    assert not (tmp_path / "sorted-a.tar").exists()


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
    report = gdsload.convert(tmp_path / "in", tmp_path / "out", workers=1)
    assert report.notes == ("tar members that are hidden or have no ending are left out: 'README' and 10 more.",)
    assert gdsload.ShardDataset(tmp_path / "out").column("txt") == ["a", "b", "c"]
    path = written(tmp_path, archive([("a", b"x"), ("__MACOSX/0.txt", b"x")]))
    with pytest.raises(FormatError, match="it has none; tar members .* no ending are left out: 'a' and 1 more"):
        gdsload.convert(path, tmp_path / "none", workers=1)


@pytest.mark.parametrize("end", [0, 512])
def test_a_file_without_a_mark_at_its_end_is_said(tmp_path, end):
    """It may be cut short between two members, and nobody knows."""
    path = written(tmp_path, archive([("0.txt", b"a"), ("1.txt", b"b")])[: 2048 + end])
    report = gdsload.convert(path, tmp_path / "out", workers=1)
    assert report.samples == 2
    assert report.notes == (() if end else ("tar files without a mark at their end may be cut short: 'a.tar'.",))
