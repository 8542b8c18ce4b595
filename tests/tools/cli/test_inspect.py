import io
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import gdsload
from gdsload.system.probe.mounts import parse_mounts
from gdsload.tools.cli import main
from gdsload.tools.cli.samples import caption
from gdsload.tools.doctor import block


@pytest.fixture
def dataset(tmp_path):
    schema = {"image": gdsload.Field("uint8", (2, 3)), "tokens": gdsload.Field("int16", (None,)), "text": "str"}
    with gdsload.ShardWriter(tmp_path / "d", schema, shard_bytes="100B") as writer:
        for number in range(20):
            tokens = torch.arange(number % 4, dtype=torch.int16)
            writer.write(
                {"image": torch.full((2, 3), number, dtype=torch.uint8), "tokens": tokens, "text": "é" * number}
            )
    return tmp_path / "d"


def test_inspect_lists_as_many_shards_as_asked(dataset, cli):
    shards = len(gdsload.ShardDataset(dataset).shards)
    for words, shown in ([], 10), (["--shards", "1"], 1):
        out = cli("inspect", dataset, *words).out
        assert out.count("shard-") == shown
        assert out.endswith(f"and {shards - shown} more\n")


def test_fields_that_are_stored_together_are_named(tmp_path, cli):
    with gdsload.ShardWriter(tmp_path / "d") as writer:
        writer.write({"a": 1, "b": 2.0, "c": True, "d": 4})
    said = cli("inspect", tmp_path / "d").out
    assert "stored together: b, a, d, c\n" in said
    assert all(f"\n{name} " in said for name in "abcd")
    assert cli("inspect", tmp_path / "d", "--json").tree["packed"] == [["b", "a", "d", "c"]]


def test_runs_as_a_module_and_into_a_closed_pipe(dataset):
    program = f"{sys.executable} -m gdsload inspect {dataset} | head -n 1"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"{dataset}\n"
    assert done.stderr == ""


FULL = """error: the output cannot be written: No space left on device
hint: Make room where it goes, or send it elsewhere.
"""


@pytest.mark.parametrize("arguments", ["inspect {}", "convert --json {} {}-2"])
def test_output_that_cannot_be_written_is_an_error(dataset, arguments, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdout", open("/dev/full", "w"))  # noqa: SIM115 - the command closes it
    assert main(arguments.format(dataset, dataset).split()) == 1
    assert capsys.readouterr().err == FULL


def test_so_it_is_when_the_program_ends():
    program = f"{sys.executable} -m gdsload > /dev/full"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False)
    assert (done.stderr, done.returncode) == (FULL, 1)


def test_inspect_shows_what_lies_on_which_drive(tmp_path, dataset, cli, monkeypatch):
    drives = [tmp_path / "nvme0", tmp_path / "nvme1"]
    for drive in drives:
        drive.mkdir()
    gdsload.reshard(dataset, tmp_path / "spread", shard_bytes="100B", workers=1, spread_over=drives)
    counts = [sum(1 for path in drive.rglob("shard-*")) for drive in drives]
    lines = [
        f"{40 + number} 1 0:{90 + number} / {drive} rw - ext4 /dev/fast{number} rw"
        for number, drive in enumerate(drives)
    ]
    monkeypatch.setattr(
        block, "read_mounts", lambda tree: parse_mounts("\n".join(["1 0 8:1 / / rw - ext4 /dev/root rw", *lines]))
    )
    said, found = cli("inspect", tmp_path / "spread").out, cli("inspect", "--json", tmp_path / "spread").tree["drives"]
    assert sum(one["bytes"] for one in found) == gdsload.ShardDataset(tmp_path / "spread").num_bytes
    shown = {one["mount"]: (one["device"], one["shards"]) for one in found}
    for number, (drive, count) in enumerate(zip(drives, counts, strict=True)):
        assert f"{drive} (/dev/fast{number})  {count} " in said
        assert shown[str(drive)] == (f"/dev/fast{number}", count)


def test_a_terminal_that_is_too_narrow_for_a_table_gets_two_lines_for_each_row(dataset, in_terminal):
    code, shown = in_terminal("inspect", dataset, "--shards", "1", columns=24)
    assert code == 0
    assert "image\n  uint8 [2, 3] · 6 B\ntokens\n  int16 [*] · 2 B a row\n" in shown
    assert re.search(r"\nshard-00000.safetensors\n  \d+ · \d+ KiB\n", shown)


def png(pixels):
    stream = io.BytesIO()
    pytest.importorskip("PIL.Image").fromarray(pixels).save(stream, "png")
    return stream.getvalue()


def colours(path):
    with pytest.importorskip("PIL.Image").open(path) as sheet:
        return {colour for _, colour in sheet.convert("RGB").getcolors(10**6)}


@pytest.fixture
def named(tmp_path):
    """Encoded images of two classes."""
    metadata = {
        "classes": {"label": ["cat", "naïve 日本"]}, "licence": "CC0", "numbers": list(range(200)),
        "source": {"kind": "torch dataset", "name": "mine.data:Photos", "options": {"size": 3}}, "gdsload": "0.1.0",
    }  # fmt: skip
    schema = {"photo": gdsload.Field("image"), "label": "int64"}
    with gdsload.ShardWriter(tmp_path / "named", schema, metadata=metadata) as writer:
        for number in range(4):
            pixels = np.full((20, 30, 3), (number * 60, 255, 0), np.uint8)
            writer.write({"photo": png(pixels), "label": number % 3})
    return tmp_path / "named"


def test_what_a_dataset_says_of_itself_is_shown(named, cli):
    said = cli("inspect", named).out
    assert "classes of label: cat, naïve 日本\n" in said
    assert 'from: torch dataset mine.data:Photos, with {"size": 3}\n' in said
    assert "written by gdsload 0.1.0\n" in said
    assert "licence: CC0\n" in said
    assert max(map(len, said.splitlines())) < 250
    assert "photo  image  varies\n" in said
    assert cli("inspect", named, "--json").tree["metadata"] == gdsload.ShardDataset(named).metadata


def test_anything_that_json_can_hold_is_shown(tmp_path, cli):
    odd = {"classes": [1], "source": "there", "gdsload": {"a": None}, "x": {"y": "\x1b[31m" * 100}}
    for number, metadata in enumerate((odd, {"classes": {"x": 3, "z": {"a": 1}}, "source": {}})):
        with gdsload.ShardWriter(tmp_path / str(number), {"x": "int64"}, metadata=metadata) as writer:
            writer.write({"x": 1})
        assert "\x1b" not in cli("inspect", tmp_path / str(number)).out


def test_a_sheet_of_encoded_images_has_their_classes(named, tmp_path, cli):
    out = tmp_path / "sheet.png"
    assert "4 images, random samples" in cli("inspect", named, "--image", "photo", "--out", out).out
    assert {(number * 60, 255, 0) for number in range(4)} <= colours(out)


def test_a_sheet_has_what_a_loader_decodes(tmp_path, cli):
    """Of 16 bits the upper 8."""
    out = tmp_path / "sheet.png"
    with gdsload.ShardWriter(tmp_path / "d", {"x": gdsload.Field("image")}) as writer:
        writer.write({"x": png(np.full((4, 4), 0x5A00, np.uint16))})
    cli("inspect", tmp_path / "d", "--image", "x", "--out", out)
    assert (0x5A, 0x5A, 0x5A) in colours(out)


def test_captions():
    metadata = {"classes": {"a": ["no", "yes"], "b": 3}}
    assert caption(metadata, {"a": torch.tensor(1), "b": torch.tensor(0)}, 7) == "7 yes"
    assert caption(metadata, {"a": torch.tensor(5)}, 7) == caption({}, {"a": torch.tensor(1)}, 7) == "7"
    assert caption(metadata, {"a": torch.tensor([1, 0])}, 7) == caption({"classes": 3}, {}, 7) == "7"


def test_a_damaged_image_is_named(tmp_path, cli):
    pytest.importorskip("PIL.Image")
    with gdsload.ShardWriter(tmp_path / "d", {"x": gdsload.Field("image")}) as writer:
        writer.write({"x": b"\xff\xd8\xff nothing more"})
    said = cli("inspect", tmp_path / "d", "--image", "x", "--out", tmp_path / "s.png", code=1).err
    assert "sample 0: the image cannot be decoded" in said
    cli("inspect", tmp_path / "d", "--sample", "0")


def test_a_sample_says_what_its_image_is(named, cli):
    assert "(png, 30 × 20)" in cli("inspect", named, "--sample", "1").out


def test_names_are_cut_before_they_are_laid_out(tmp_path, capsys):
    with gdsload.ShardWriter(tmp_path / "d", {"y" * 100_000: "int8", "x": "int8"}) as writer:
        writer.write({"y" * 100_000: 1, "x": 1})
    assert main(["inspect", str(tmp_path / "d")]) == 0
    assert len(capsys.readouterr().out) < 5000
