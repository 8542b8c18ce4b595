"""The output that people see in a terminal of 80 columns, and some of it in one of 40: read, found right, and kept.

Words stand for times, rates, paths and sizes that vary.
"""

import re
import shlex
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

import gdsload
from tests.shards.bits import flip
from tests.tools.cli.terminals import settled
from tests.tools.golden import golden

GOLDEN = Path(__file__).parent / "golden"
HELP = ["", "--version", *(
    f"{command} --help" for command in (
        "convert", "split", "inspect", "verify", "doctor", "bench", "demo", "completion"
    )
), "convert --help-source", "convert --help-source images"]  # fmt: skip
NARROW = [
    "help",
    "help inspect",
    "convert --help-source numpy",
    "inspect words --sample 1",
    "convert x.npy b --kind nump",
    "inspect aa",
]
WORK = [
    "convert x.npy a --dry-run",
    "convert x.npy a --workers 1",
    "convert x.npy b --workers 1 --json",
    "convert x.npy c --workers 1 --quiet",
    "convert x.npy b --workers 1 --shard-bytes 1kB --overwrite --shuffle-seed 3",
    "merge both a b --workers 1",
    "split both d e --sizes 0.5 --workers 1",
    "inspect a",
    "inspect words --sample 1",
    "inspect d --shards 1 --json",
    "verify a",
    "verify b --deep",
]
FAULTS = [
    "conver x.npy a",
    "inspect aa",
    "convert x.npy a --field x",
    "convert x.npy",
    "convert x.npy a b",
    "convert x.npy a --workers many",
    "convert x.npy a --workers 0",
    "convert x.npy a",
    "convert none a",
    "convert x.npy new --colour red",
    "convert x.npy new --pack x",
    "convert x.npy new --fields y",
    "convert x.npy new --shard-bytes lots",
    "convert x.npy new --cast x=uint8",
    "convert x.npy new --cast x=uint8 --on-error skip --workers 1",
    "convert pictures one",
    "convert pictures two --resize crop",
    "convert pictures two --size 8 --resize none --report no/where",
    "convert pictures two --size 8 --resize none",
    "split a d e --sizes 3,4",
    "split a d e --sizes half",
    "bench a --backends auto,cpu",
    "inspect x.npy",
    "inspect a --sample 999",
    "inspect a --image x",
    "verify damaged",
]
SHOWN = {"help": HELP, "narrow": NARROW, "work": WORK, "faults": FAULTS}


@pytest.fixture(scope="module")
def made():
    folder = Path(tempfile.mkdtemp(prefix="golden-", dir="/tmp"))  # as long as any other time: lines break as then
    numbers = np.arange(240, dtype=np.int32).reshape(60, 4)
    np.save(folder / "x.npy", numbers * 2)
    pillow = pytest.importorskip("PIL.Image")
    for label in ("cat", "dog"):
        (folder / "pictures" / label).mkdir(parents=True)
        for number in range(3):
            shape = (9 + number, 12, 3)
            pillow.fromarray(np.zeros(shape, np.uint8)).save(folder / "pictures" / label / f"{number}.png")
    schema = {"text": "str", "label": "int64", "picture": gdsload.Field("float16", (None, 8))}
    with gdsload.ShardWriter(folder / "words", schema) as writer:
        for number in range(3):
            writer.write({"text": "ä word " * 9 * number, "label": number, "picture": np.zeros((number + 1, 8), "f2")})
    with gdsload.ShardWriter(folder / "damaged", shard_bytes="4kB") as writer:
        writer.write_batch({"x": np.arange(3000)})
    shard = sorted((folder / "damaged").glob("shard-*"))[1]
    flip(shard, shard.stat().st_size - 2000)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def folder(made):
    """A new folder with the same files."""
    folder = Path(tempfile.mkdtemp(prefix="golden-", dir="/tmp"))
    shutil.copytree(made, folder, dirs_exist_ok=True)
    yield folder
    shutil.rmtree(folder)


def masked(text, folder):
    """Without what is this machine's and this moment's; colours as words, so that they can be read."""
    text = re.sub(r"\x1b\[(\d+)m", lambda found: {"0": "</>", "1": "<bold>", "31": "<red>", "32": "<green>",
                                                    "33": "<yellow>", "36": "<cyan>"}[found[1]], text)  # fmt: skip
    text = text.replace(str(folder), "FOLDER").replace(gdsload.__version__, "VERSION")
    text = re.sub(r"digest [0-9a-f]+", "digest DIGEST", text)
    text = re.sub(r'"digest": "[^"]+"', '"digest": "DIGEST"', text)
    text = re.sub(r"\d[\d.]* m?s, [\d.]+ samples/s", "TIME", text)
    text = re.sub(r"\(\d[\d.]* m?s, [\d.]+ .?i?B/s\)", "(TIME)", text)
    text = re.sub(r"^/\S* \(?\S*\)? {2,}(\d)", r"MOUNT  \1", text, flags=re.MULTILINE)
    text = re.sub(r'"(mount|device)": "[^"]*"', r'"\1": "MOUNT"', text)
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


def lines_of(text):
    lines = re.sub(r"\x1b\[\d+m", "", settled(text)).splitlines()
    return [line for line in lines if not line.startswith("$ ")]


@pytest.mark.parametrize(("what", "columns"), [("help", 80), ("narrow", 40), ("work", 80), ("faults", 80)])
def test_in_a_terminal(monkeypatch, folder, in_terminal, what, columns):
    if what == "faults":
        gdsload.convert(folder / "x.npy", folder / "a", workers=1)
    monkeypatch.chdir(folder)
    said = ""
    for line in SHOWN[what]:
        code, text = in_terminal(*shlex.split(line), columns=columns)
        said += f"$ gdsload {line}\n{text}" + (f"[{code}]\n" if code else "\n")
    wide = [line for line in lines_of(said) if len(line) > columns]
    assert [
        line for line in wide if not line.startswith(("  gdsload ", "digest ", '"digest', ' "'))
    ] == []  # what is to be pasted
    golden(GOLDEN / f"{what}-{columns}.txt", masked(settled(said), folder))
