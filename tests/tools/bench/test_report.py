"""Reports of made-up records: in terminals from 40 columns on, and as a page."""

import itertools
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.tools.bench import contents
from gdsload.tools.bench.facts import figure, gain_text, percent, thousands
from gdsload.tools.bench.page import render_page
from gdsload.tools.bench.report import render_text
from gdsload.tools.bench.same_pattern import commands
from gdsload.tools.bench.verdict import verdict
from tests.tools.bench.records import COLD, made_record, row, table
from tests.tools.bench.test_verdict import TABLE
from tests.tools.golden import golden

GOLDEN = Path(__file__).parent / "golden"
NOT_MEASURED = {"cold_start": None, "machine": {"load": None}, "limits": {"link": None, "memory": None, "noise": None}}
UNKNOWN = row(
    "host", 0.6, cpu=None, drive_share=None, share_of_limit=None, warning="a turn had 3 batches: too short",
    bytes_by_path={"host": 5},
)  # fmt: skip
RECORDS = [made_record(*changes, *more) for _, _, changes, _ in TABLE for more in ((), (NOT_MEASURED,))] + [
    made_record({"cold": table(UNKNOWN), "hot": None, "verified": [], "stopped": "by Ctrl-C after 4 of 20 turns"})
]


def judged(*changes):
    record = made_record(*changes)
    return record | {"verdict": verdict(record)}


def test_a_gpu_machine():
    golden(GOLDEN / "gpu-100.txt", render_text(judged(), 100) + "\n")


@settings(max_examples=60)
@given(st.sampled_from(RECORDS), st.integers(40, 130), st.booleans())
def test_every_line_fits_and_nothing_is_left_out(record, width, blocks):
    record = record | {"verdict": verdict(record)}
    text = render_text(record, width, blocks=blocks)
    facts = [*contents.limits(record), *contents.cold_start(record), *contents.answers(record)]
    said = [record["verdict"]["sentence"], *contents.conditions(record).values(), *contents.notes(record)]
    for part in [*said, *itertools.chain(*facts), *contents.remarks(record, "cold"), *contents.remarks(record, "hot")]:
        assert " ".join(part.split()) in " ".join(text.split())
    lines = [line for line in text.splitlines() if "gdsload bench " not in line and "gdsload doctor " not in line]
    assert max(map(len, lines)) <= width
    assert "e+" not in text
    assert "None" not in text
    assert blocks or not re.search("[█-▏]", text)
    for state in ("cold", "hot"):
        for one in (record[state] or {"rows": ()})["rows"]:
            assert re.search(
                rf"^  {re.escape(one['name'])} +{re.escape(figure(one['gb_per_s']['median']))}( |$)", text, re.MULTILINE
            )


def test_rows_that_were_left_out_are_named():
    record = judged({"conditions": {"unavailable": {"kvikio": "it is not installed"}}})
    for text in (render_text(record, 80), render_page(record)):
        assert "kvikio was not measured: it is not installed" in text


def test_what_was_measured_until_it_was_stopped():
    record = judged(
        {"stopped": "by Ctrl-C after 4 of 20 turns", "hot": table(state="hot"), "cold": COLD | {"checked": ""}}
    )
    text = render_text(record, 80)
    assert "\nCOLD  first epochs, or data larger than memory\n" in text
    assert "stopped    by Ctrl-C after 4 of 20 turns" in text
    assert "HOT  stopped by Ctrl-C after 4 of 20 turns" in text


@pytest.mark.parametrize("changes", [changes for _, _, changes, _ in TABLE] + [[NOT_MEASURED]])
def test_a_page_says_the_same(changes):
    record = judged(*changes)
    page = render_page(record)
    tree = ET.fromstring(page.removeprefix("<!DOCTYPE html>"))
    text = " ".join("".join(tree.itertext()).split())
    for part in (record["verdict"]["sentence"], record["verdict"]["do"], *record["verdict"]["next"]):
        assert " ".join(part.replace("`", "").split()) in text
    for state in ("cold", "hot"):
        for one in (record[state] or {"rows": ()})["rows"]:
            assert one["name"] in text
    assert not tree.findall(".//script")
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page
    assert not re.search(r"https?://|url\(|@import", page)


def test_a_page_escapes_all_texts():
    evil = '"><script>alert(1)</script>&'
    record = judged()

    def poisoned(tree):
        if isinstance(tree, dict):
            return {
                key: poisoned(value) if key not in ("kind", "schema", "state") else value for key, value in tree.items()
            }
        if isinstance(tree, list):
            return [poisoned(one) for one in tree]
        return tree + evil if isinstance(tree, str) else tree

    page = render_page(poisoned(record))
    assert "<script" not in page
    assert ET.fromstring(page.removeprefix("<!DOCTYPE html>")) is not None
    assert "\x1b" not in render_text(judged({"dataset": {"path": "a\x1b[2Jb"}}), 80)


@pytest.fixture
def shards(tmp_path):
    files = [tmp_path / f"a:b c{number}" for number in range(10)]
    for number, file in enumerate(files):
        file.write_bytes(bytes(2**20 + 4096 * number))
    return [str(file) for file in files]


@pytest.mark.parametrize("shuffle", [False, "full", "block"])
@pytest.mark.parametrize("read_bytes", [1, 4096, 77_000, 2**30])
def test_the_commands_read_as_the_batches_do(shards, shuffle, read_bytes):
    found = commands(shards, read_bytes, shuffle=shuffle, device="cuda:1")
    options = dict(word[2:].split("=", 1) for word in found["fio"][1:] if "=" in word)
    assert options["filename"].count("a\\:b") == 8
    assert options["rw"] == ("randread" if shuffle else "read")
    block = int(options["bs"].removesuffix("k")) * 1024
    assert block % 4096 == 0
    assert block >= min(read_bytes, 2**20)
    assert block <= 2**20 + 8192  # no more than the file has
    assert "--readonly" in found["fio"]
    assert found["gdsio"][found["gdsio"].index("-d") + 1] == "1"
    assert found["gdsio"][found["gdsio"].index("-I") + 1] == ("2" if shuffle else "0")
    assert set(commands(shards, read_bytes, shuffle=shuffle, device="cpu")) == {"fio"}
    if read_bytes == 77_000 and shutil.which("fio"):
        subprocess.run([*found["fio"], "--parse-only"], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (figure(11.6), "11.6"), (figure(0.00401), "0.0040"), (figure(347.4), "347"), (figure(0), "0"),
        (figure(None), "–"), (figure(float("nan")), "–"), (figure(9.96), "10.0"), (figure(99.96), "100"), (percent(0.013), "1.3 %"), (percent(0.97), "97 %"),
        (percent(None), "–"), (gain_text(0.65), "+65 %"), (gain_text(-0.12), "-12 %"), (gain_text(1.6), "2.6 times"),
        (thousands(77_012), "77 000"), (thousands(12.4), "12"), (thousands(None), "–"),
    ],
)  # fmt: skip
def test_numbers(said, text):
    assert said == text
