"""WebDataset tar files: what WebDataset itself reads from them, and hostile ones."""

import gzip
import io
import os
import pathlib
import pickle
import shutil
import subprocess
import tarfile
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import gdsload
from gdsload.conversion.sources.webdataset_tars import TarSource
from gdsload.errors import ConversionError, FormatError, SchemaError
from tests.conversion.contents import Evil, archive, npy, pack, picture
from tests.conversion.reading import items_of


# WebDataset leaves its files open.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_equals_what_webdataset_reads(tmp_path):
    wds = pytest.importorskip("webdataset")
    rng = np.random.default_rng(0)
    for shard in (2, 10):
        with wds.TarWriter(str(tmp_path / f"s-{shard}.tar"), encoder=True) as writer:
            for number in range(5):
                image = rng.integers(0, 256, (6 + number, 8, 3), np.uint8)
                sample = {"__key__": f"dir/{shard:03d}{number:03d}", "png": image, "cls": number, "txt": f"é{number}"}
                writer.write({**sample, "left.npy": rng.random(3), "bin": b"\x80\x00" * number})
    source = pickle.loads(pickle.dumps(TarSource(str(tmp_path))))
    parts = source.parts(1)
    assert [part.name for part in parts] == ["s-2.tar", "s-10.tar"]
    found = [item.make() for item in items_of(source)]
    expected = []
    for shard in (2, 10):
        url = str(tmp_path / f"s-{shard}.tar")
        expected += list(wds.WebDataset(url, shardshuffle=False).decode("rgb8"))
    assert len(found) == len(expected) == 10
    for mine, theirs in zip(found, expected, strict=True):
        assert list(mine) == ["key", *[name.replace(".", "_") for name in theirs if not name.startswith("__")]]
        assert mine["key"] == theirs["__key__"]
        assert (mine["cls"], mine["txt"], mine["bin"]) == (theirs["cls"], theirs["txt"], theirs["bin"])
        np.testing.assert_array_equal(mine["left_npy"], theirs["left.npy"], strict=True)
        np.testing.assert_array_equal(mine["png"], theirs["png"].transpose(2, 0, 1), strict=True)


@pytest.mark.parametrize("suffix", [".tar.gz", ".tgz"])
def test_packed(tmp_path, suffix):
    file = pack(tmp_path / f"a{suffix}", [(f"{n}.id", str(n).encode()) for n in range(50)], "w:gz")
    assert [item.make() for item in items_of(TarSource(file, with_key=False))] == [{"id": n} for n in range(50)]


def test_names(tmp_path):
    members = [("./a.JSON", b"{ }"), ("./a.x.y.Cls", b" 7\n"), ("._README", b""), (".hidden", b""), ("d.e/b.txt", b"t")]
    found = [item.make() for item in items_of(TarSource(pack(tmp_path / "a.tar", members)))]
    assert found == [{"key": "./a", "json": "{ }", "x_y_cls": 7}, {"key": "d.e/b", "txt": "t"}]


WITHOUT_CONTENT = [
    (tarfile.SYMTYPE, "a link to '/etc/passwd', which is not followed"),
    (tarfile.LNKTYPE, "a link to '/etc/passwd', which is not followed"),
    (tarfile.CHRTYPE, "a device"),
    (tarfile.BLKTYPE, "a device"),
    (tarfile.FIFOTYPE, "a named pipe"),
    (b"M", "of type b'M', which is not known"),
]


def test_what_has_no_content_spoils_its_sample_and_nothing_is_put_on_disk(tmp_path, left_out):
    kinds = [*(kind for kind, _ in WITHOUT_CONTENT), tarfile.DIRTYPE]
    members = [(f"{number}.txt", kind, "/etc/passwd") for number, kind in enumerate(kinds)]
    pack(tmp_path / "a.tar", [*members, ("../../evil.txt", b"ok")])
    reasons = {f"{number}": f"'{number}.txt' is {why}" for number, (_, why) in enumerate(WITHOUT_CONTENT)}
    assert list(left_out(tmp_path / "a.tar", reasons)) == [{"key": "../../evil", "txt": "ok"}]
    assert os.listdir(tmp_path) == ["a.tar"]
    with pytest.raises(FormatError, match="a link to '/etc/passwd', which is not followed"):
        items_of(TarSource(str(tmp_path / "a.tar")))[0].make()


def bad_array(shape):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return stream.getvalue() + bytes(16)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("npy", npy(np.array([Evil()], object), allow_pickle=True), "never loaded"),
        ("npy", bad_array((2**50,)), "promises"),
        ("npy", bad_array((-1, -2)), "promises"),
        ("npy", b"\x93NUMPY\x01\x00\xff\xff{", "cannot be decoded"),
        ("npy", b"", "cannot be decoded"),
        ("cls", b"seven", "cannot be decoded"),
        ("cls", b"9" * 10_000, "cannot be decoded"),
        ("id", b"1_000", "b'1_000' is no whole number"),
        ("txt", b"\xff", "cannot be decoded"),
        ("png", b"\x89PNG\r\n\x1a\n", "cannot be decoded"),
        ("jpg", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "it is none of JPEG, PNG"),  # nor Ghostscript's
    ],
)  # fmt: skip
def test_a_bad_member_spoils_its_sample_alone(tmp_path, name, content, match):
    file = pack(tmp_path / "a.tar", [(f"0.{name}", content), ("1.txt", b"fine")])
    bad, good = items_of(TarSource(file))
    with pytest.raises(FormatError, match=match):
        bad.make()
    assert good.make()["txt"] == "fine"


def test_a_pickle_stays_bytes(tmp_path):
    content = pickle.dumps(Evil())
    file = pack(tmp_path / "a.tar", [("0.pyd", content), ("0.pth", content), ("0.pickle", content)])
    assert items_of(TarSource(file, with_key=False))[0].make() == {"pyd": content, "pth": content, "pickle": content}


def test_members_twice(tmp_path, left_out):
    members = [("2.x", b""), ("2.X", b""), ("3.ok", b"")]
    assert left_out(pack(tmp_path / "a.tar", members), {"2": "two members"}).column("ok") == [b""]


def test_a_member_called_key(tmp_path):
    file = pack(tmp_path / "a.tar", [("0.key", b"k")])
    with pytest.raises(FormatError, match="with_key=False"):
        items_of(TarSource(file))[0].make()
    assert items_of(TarSource(file, with_key=False))[0].make() == {"key": b"k"}


@pytest.mark.parametrize("packed", [False, True])
def test_cut_short_anywhere(tmp_path, packed):
    rng = np.random.default_rng(1)
    file = pack(tmp_path / "a.tar", [(f"{n}.bin", rng.bytes(700)) for n in range(4)])
    whole = pathlib.Path(file).read_bytes()
    contents = -(-len(whole.rstrip(b"\0")) // 512) * 512 + 512
    whole = gzip.compress(whole) if packed else whole
    for end in [*range(0, len(whole), 197), len(whole) - 3]:
        pathlib.Path(file).write_bytes(whole[:end])
        if end > contents and not packed:  # of the zeros at the end
            assert len(items_of(TarSource(file))) == 4
            continue
        with pytest.raises(FormatError, match="cannot be read|no mark at its end"):
            items_of(TarSource(file))
    if packed:
        pathlib.Path(file).write_bytes(whole[:900] + bytes([whole[900] ^ 1]) + whole[901:])
        with pytest.raises(FormatError, match="cannot be read"):
            items_of(TarSource(file))


def claiming(path, nbytes, packed=False, name="a.bin", pax=None):
    """A small tar of a member that has four bytes, and says that it has others."""
    info = tarfile.TarInfo(name)
    info.size, info.pax_headers = nbytes, pax or {}
    form = tarfile.PAX_FORMAT if pax or nbytes > 8**11 else tarfile.GNU_FORMAT
    raw = info.tobuf(form) + b"1234".ljust(512, b"\0") + bytes(9216)
    path.write_bytes(gzip.compress(raw) if packed else raw)
    return str(path)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("fields", [None, ["other"]])
@pytest.mark.parametrize("nbytes", [20_000, 2**31, 10**11, 10**15, 2**62])
def test_sizes_are_believed_as_far_as_the_file_goes(tmp_path, nbytes, packed, fields):
    source = TarSource(claiming(tmp_path / f"a.tar{'.gz' if packed else ''}", nbytes, packed))
    began = time.monotonic()
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=r"ends in the middle|unexpected end|it ends within"):
            items_of(source if fields is None else source.only(fields))
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()
    assert time.monotonic() - began < 1


@pytest.mark.parametrize(
    "headers",
    [
        {"GNU.sparse.size": "1000000000", "GNU.sparse.numblocks": "1", "GNU.sparse.offset": "0", "GNU.sparse.numbytes": "4"},
        {"GNU.sparse.size": "1000000000", "GNU.sparse.map": "0,4"},
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "1000000000", "GNU.sparse.name": "a.bin"},
        {"GNU.sparse.realsize": "1000000000"},
    ],
    ids=["0.0", "0.1", "1.0", "unknown"],
)  # fmt: skip
def test_sparse_members_are_refused_in_every_form(tmp_path, headers):
    path = claiming(tmp_path / "a.tar", 4, pax=headers)
    with pytest.raises(FormatError, match="sparse file|cannot be read"):
        items_of(TarSource(path))


def test_members_that_nobody_wants_are_not_looked_at(tmp_path):
    members = [(f"{n}.{name}", content) for n in range(3) for name, content in (("jpg", b"none"), ("cls", b"%d" % n))]
    source = TarSource(pack(tmp_path / "a.tar", members))
    assert [item.make() for item in items_of(source.only(["cls"]))] == [{"key": str(n), "cls": n} for n in range(3)]
    with pytest.raises(FormatError, match="the image cannot be decoded"):
        items_of(source)[0].make()
    pictures = TarSource(pack(tmp_path / "b.tar", [("0.png", picture(Image.new("RGBA", (2, 2)))), ("0.cls", b"1")]))
    assert pictures.form.notes != pictures.only(["cls"]).form.notes == ()


def test_a_sample_with_other_members_is_named_or_skipped(tmp_path, left_out):
    members = [(f"{n:03}.{name}", b"%d" % n) for n in range(300) for name in ("txt", "cls") if (n, name) != (7, "txt")]
    path = pack(tmp_path / "a.tar", members)
    with pytest.raises(SchemaError, match="007 of a.tar has the fields 'key', 'cls', an earlier sample 'key', 'txt'"):
        gdsload.convert(path, tmp_path / "out", workers=1)
    report = gdsload.convert(path, tmp_path / "out", on_error="skip", workers=1)
    assert [one.key for one in report.skipped] == ["007"]
    assert "the fields are 'key', 'cls', but 'key', 'txt', 'cls' were expected" in report.skipped[0].reason
    assert list(gdsload.ShardDataset(tmp_path / "out").schema) == ["key", "txt", "cls"]
    wanted = left_out(path, {"007": "there is no field 'txt'"}, fields=["txt", "cls"])
    assert [int(wanted[n]["cls"]) for n in (6, 7)] == [6, 8]
    first = pack(tmp_path / "b.tar", [("0.cls", b"1"), *members[:40]])
    with pytest.raises(ConversionError, match="samples cannot be converted, more than"):  # the first says what all have
        gdsload.convert(first, tmp_path / "no", on_error="skip", workers=1)


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_members_in_another_order_are_the_same_fields(tmp_path, on_error):
    """Also to say that a field is ragged."""
    members = []
    for n in range(20):
        one = [(f"{n:03}.npy", npy(np.arange(3 if n == 7 else 2))), (f"{n:03}.cls", b"%d" % n)]
        members += reversed(one) if n == 7 else one
    path = pack(tmp_path / "a.tar", members)
    assert gdsload.convert(path, tmp_path / "out", on_error=on_error, workers=1).samples == 20
    sample = gdsload.ShardDataset(tmp_path / "out")[7]
    assert (sample["npy"].tolist(), int(sample["cls"]), sample["key"]) == ([0, 1, 2], 7, "007")


@pytest.mark.parametrize("options", [{"size": 8}, {"keep_encoded": True}])
def test_images_among_what_is_wanted(tmp_path, converted, options):
    members = [("0.png", picture(Image.new("RGB", (20, 10)))), ("0.cls", b"1"), ("0.txt", b"x")]
    path = pack(tmp_path / "a.tar", members)
    assert list(converted(path, fields=["png", "cls"], **options).schema) == ["png", "cls"]


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


@given(st.lists(st.binary(max_size=1500).map(bytes.hex), min_size=1, max_size=3), st.integers(0, 12_000), st.booleans())
def test_an_archive_is_read_whatever_zeros_fill_it_up(place, contents, zeros, packed):
    expected = [(f"{n}", text) for n, text in enumerate(contents)]
    content = archive([(f"{n}.txt", text.encode()) for n, text in expected]) + bytes(zeros)
    assert texts(written(place, content, packed)) == expected


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("zeros", [0, 700, 20_000])
@pytest.mark.parametrize("second", [archive([("0.txt", b"b")]), b"x", b"PK\3\4" * 200])
def test_what_comes_after_an_archive_is_refused(tmp_path, second, zeros, packed):
    """Also a second archive, whose members may be called as those of the first are."""
    whole = archive([("0.txt", b"a")]) + bytes(zeros) + second
    said = rf"after the end of an archive there is something else, at byte {len(whole) - len(second)}\."
    with pytest.raises(FormatError, match=said):
        read(written(tmp_path, whole, packed))


@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_header_is_not_taken_for_the_end(tmp_path, packed):
    content = bytearray(archive([(f"{n}.txt", b"a") for n in range(4)]))
    content[2048 + 150] ^= 1  # the third one's checksum
    with pytest.raises(FormatError, match="it is damaged at byte 2048: bad checksum"):
        read(written(tmp_path, bytes(content), packed))


@pytest.mark.skipif(shutil.which("tar") is None, reason="GNU tar is not here")
def test_the_remedies_of_links_and_of_members_apart_work(tmp_path, converted, left_out):
    (tmp_path / "in").mkdir()
    for name in ("0.txt", "1.txt", "0.cls"):
        (tmp_path / "in" / name).write_text(name[0])
    (tmp_path / "in" / "1.cls").symlink_to("1.txt")

    def packed(how):
        subprocess.run(["tar", *how.split(), "-cf", "a.tar", "-C", "in", "."], check=True, cwd=tmp_path)
        return tmp_path / "a.tar"

    said = "is a link to .*`tar --sort=name`, with `--dereference --hard-dereference`"
    with pytest.raises(ConversionError, match=said):
        converted(packed("--sort=name"))
    assert len(left_out(packed("--sort=name"), {"./1": "is a link to"})) == 1
    assert converted(packed("--sort=name --dereference --hard-dereference")).column("cls").tolist() == [0, 1]
    members = [(f"s/{n:03}.{name}", b"%d" % n) for name in ("txt", "cls") for n in range(9)]
    for on_error in ("stop", "skip"):
        with pytest.raises(FormatError, match="'s/000' are not side by side: 's/000.cls' comes.*`tar --sort=name`"):
            converted(written(tmp_path, archive(members)), on_error=on_error)


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


def test_members_that_are_hidden_or_have_no_extension_are_left_out(tmp_path):
    """Folders and labels of archives are no files."""
    members = [
        ("README", b"about it"), ("d", tarfile.DIRTYPE, ""), ("label", b"V", ""), ("._0.txt", b"\0\5\x16\7"),
        ("__MACOSX/._0.txt", b"\0\5"), ("d/.ipynb_checkpoints/0-checkpoint.txt", b"old"), ("@eaDir/0.txt", b"thumb"),
        ("0.txt", b"a"), ("_1.txt", b"b"), (".DS_Store", b""), ("2", b""), ("to", tarfile.SYMTYPE, "0.txt"), ("2.txt", b"c"),
    ]  # fmt: skip
    assert texts(written(tmp_path, archive(members))) == [("0", "a"), ("_1", "b"), ("2", "c")]


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_without_a_mark_at_its_end_is_refused(tmp_path, packed):
    """It may be cut short between two members."""
    content = archive([("0.txt", b"a"), ("1.txt", b"b")])[:2048]
    with pytest.raises(FormatError, match="no mark at its end, so it may be cut short.*1024 bytes of zeros"):
        read(written(tmp_path, content, packed))
    assert len(texts(written(tmp_path, content + bytes(1024), packed))) == 2
