"""The verdict on made-up records: each sentence of its table, and that it never claims more than the record shows."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsload.tools.bench.verdict import verdict
from tests.tools.bench.records import AGAIN, COLD, CPU_MACHINE, HOT, SPREAD, made_record, row, table

NOISY = (0.6, 1.5, 1.0, 0.7, 1.3, 0.9, 1.2, 0.8, 1.0)
SMALL_MACHINE = {"machine": {"cores": 4}, "dataset": {"fits_memory": False, "memory_bytes": 2**34}}
FAST_DRIVE = {"limits": {"drive": {"gb_per_s": 24.0}}}
SLOW_DRIVE = {"limits": {"drive": {"gb_per_s": 3.14}}}
NO_DRIVE = {"limits": {"drive": None, "drive_why": "the file system takes no O_DIRECT"}}
BOUNCE = row("bounce", 14.0, asked="auto bounce", cpu=0.08)
NOT_COLD = table() | {"state": "not cold: another process maps these files (pid 4711)"}
NOT_HOT = table() | {"state": "not hot: the dataset has 2 TiB, and 1 TiB of memory are to be had"}
TOO_SLOW_GDS = {"cold": table(row("gds", 0.4, asked="gds"), row("bounce", 2.9, asked="auto bounce"))}

CASES = {
    "fits memory": ("no", [], "GDS does not help you here."),
    "equal": ("no", [{"dataset": {"fits_memory": False}}], "GDS does not help you here."),
    "saves processors": (
        "no", [SMALL_MACHINE], "GDS is no faster here, but it saves 0.66 of 4 cores in cold epochs.",
    ),
    "helps": (
        "yes", [FAST_DRIVE, {"cold": table(row("gds", 23.1, asked="auto gds", cpu=0.004), BOUNCE)}],
        "GDS helps: 23.1 instead of 14.0 GB/s in cold epochs (+65 %), with 1.8 fewer busy cores. `auto` uses it.",
    ),
    "unavailable, could help": (
        "unavailable", [FAST_DRIVE, {"cold": table(BOUNCE)}],
        "GDS is not available here; it could be at most 1.7 times as fast: bounce reaches 58 % of the speed of the drive.",
    ),
    "unavailable, useless": (
        "unavailable", [SLOW_DRIVE, {"cold": table(row("bounce", 3.1, asked="auto"))}],
        ("GDS would not help: your drive delivers 3.1 GB/s, and bounce reads all of it for 0.060 CPU seconds per GB (0.19 "
        "cores)."),
    ),
    "unavailable, no limit": (
        "unavailable", [NO_DRIVE, {"cold": table(BOUNCE)}],
        "GDS is not available here, and its possible gain is unknown, because the drive was not measured.",
    ),
    "worse": (
        "worse", [TOO_SLOW_GDS, {"dataset": {"read_bytes": 4096}}],
        "Do not use GDS here: 0.40 instead of 2.9 GB/s; a read has only 4 KiB. `auto` uses bounce.",
    ),
    "no gpu": (
        "unknown", [CPU_MACHINE],
        ("The batches stay on the CPU, so this run says nothing about GPU memory. Cold, the loader reads 0.61 GB/s, 69 % "
        "of the drive's 0.88. From memory the loader reads 2.8 GB/s."),
    ),
    "noisy": (
        "unknown", [CPU_MACHINE, {"limits": {"noise": {"cold": 0.38}}}],
        "No verdict: the same row measured twice differs by 38 %.",
    ),
    "too short": (
        "unknown", [{"cold": table(row("gds", 9.0, batches=4), BOUNCE)}],
        "No verdict: a row had 9 turns, and 4 batches in the shortest; 5 of both are needed.",
    ),
    "not cold": (
        "unknown", [{"cold": NOT_COLD}], "No verdict on cold reads: another process maps these files (pid 4711).",
    ),
    "not hot": (
        "unknown", [{"cold": None, "hot": NOT_HOT}],
        "No verdict on hot reads: the dataset has 2 TiB, and 1 TiB of memory are to be had.",
    ),
    "in memory": (
        "no", [{"cold": None}],
        ("Data in memory need no GDS: mapped reads 52.3 GB/s (95 % of the link), and gds, which always reads the drive, "
        "reads 11.6 GB/s."),
    ),
    "hot only": (
        "unknown", [NO_DRIVE, {"cold": None, "hot": table(HOT["rows"][0], state="hot")}],
        "No verdict on GDS: only reads of the page cache were measured.",
    ),
    "not asked": (
        "unknown", [{"cold": table(row("bounce", 11.4))}], "No verdict on GDS: it was not measured.",
    ),
    "undecided": (
        "unknown", [{"cold": table(row("gds", 11.6, spread=NOISY), row("bounce", 11.4, spread=NOISY[::-1]))}],
        "No verdict: the difference between gds and bounce may be anything from -30 % to +49 %.",
    ),
    "stopped": (
        "unknown", [{"cold": None, "hot": None, "stopped": "after 0 of 20 turns"}],
        "No verdict: the run was stopped before each row had a turn.",
    ),
}  # fmt: skip
MORE = [
    (
        "too short", "unknown",
        [{"cold": table(row("gds", 11.6, spread=SPREAD[:4]), row("bounce", 11.4, spread=AGAIN[:1]))}],
        "No verdict: a row had 1 turn, and 900 batches in the shortest; 5 of both are needed.",
    ),
    ("not asked", "unknown", [{"cold": table(COLD["rows"][0])}], "No verdict on GDS: nothing else was measured."),
    (
        "no gpu", "no", [{"conditions": {"device": "xpu:0"}, "hot": None}],
        ("GDS does not work here: cuFile only reads into NVIDIA GPUs, and the batches go to xpu:0. Cold, the loader "
        "reads 11.4 GB/s, 96 % of the drive's 11.9."),
    ),
    (
        "in memory", "no", [{"cold": None, "hot": table(HOT["rows"][0], state="hot")}],
        "Data in memory need no GDS: mapped reads 52.3 GB/s (95 % of the link), and the drive delivers 11.9 GB/s.",
    ),
    (
        "no gpu", "unknown", [CPU_MACHINE, {"cold": NOT_COLD}],
        "The batches stay on the CPU, so this run says nothing about GPU memory. From memory the loader reads 2.8 GB/s.",
    ),
    (
        "unavailable, useless", "unavailable",
        [{"cold": table(row("bounce", 10.5, asked="auto", cpu=None)), "limits": {"noise": {"cold": 0.14}}}],
        "GDS would not help: your drive delivers 11.9 GB/s, and bounce reads 88 % of it.",
    ),
    (
        "worse", "worse", [{"cold": table(row("gds", 9.0, asked="auto gds"), row("bounce", 11.4))}],
        "Do not use GDS here: 9.0 instead of 11.4 GB/s.",
    ),
    (
        "helps", "yes", [{"cold": table(row("gds", 11.6, cpu=None), row("bounce", 9.0, cpu=None))}],
        "GDS helps: 11.6 instead of 9.0 GB/s in cold epochs (+29 %).",
    ),
    (
        "unavailable, useless", "unavailable", [{"cold": table(row("bounce", 11.0, asked="auto", cpu=None))}],
        "GDS would not help: your drive delivers 11.9 GB/s, and bounce reads 92 % of it.",
    ),
]  # fmt: skip
TABLE = [(case, *rest) for case, rest in CASES.items()] + MORE


@pytest.mark.parametrize(("case", "gds", "changes", "sentence"), TABLE)
def test_each_sentence_has_a_record_that_yields_it(case, gds, changes, sentence):
    record = made_record(*changes)
    kept = copy.deepcopy(record)
    found = verdict(record)
    assert record == kept
    assert (found["case"], found["gds"], found["sentence"]) == (case, gds, sentence)
    assert found["do"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (gds == "unknown") == (sentence.startswith(("No verdict", "The batches stay")))


def test_the_keys_that_programs_read():
    found = verdict(made_record())
    assert found["gain"] == pytest.approx(11.6 / 11.4 - 1, abs=0.02)
    assert found["gain_interval"][0] <= found["gain"] <= found["gain_interval"][1]
    assert found["cpu_s_per_gb_saved"] == pytest.approx(0.057)
    assert (found["limit"], found["fits_memory"], found["noise"]) == ("drive", True, 0.021)
    assert verdict(made_record({"cold": None}))["limit"] == "link"
    assert verdict(made_record(CPU_MACHINE))["limit"] == "loader"
    assert verdict(made_record(NO_DRIVE, {"limits": {"link": None}}))["limit"] is None


def test_the_next_commands_can_be_pasted():
    options = {"conditions": {"options": {"--shuffle": "block", "--backends": "gds"}}}
    found = verdict(made_record({"dataset": {"path": "/data/a b"}, "cold": table(COLD["rows"][0])}, options))
    assert found["next"] == [
        f"gdsload bench '/data/a b' --shuffle block --backends {rest}"
        for rest in ("auto,gds,bounce", "gds --step-ms MS", "gds --commands")
    ]


def test_why_and_what_to_do():
    assert "do not fit into the page cache (1 TiB)" in verdict(made_record({"dataset": {"fits_memory": False}}))["why"]
    lacks = {"conditions": {"unavailable": {"gds": "nvidia-fs is not loaded."}}}
    found = verdict(made_record(FAST_DRIVE, lacks, {"cold": table(row("bounce", 14.0))}))
    assert (found["gds"], found["why"].partition(" Your ")[0]) == ("unavailable", "nvidia-fs is not loaded.")
    shaky = verdict(made_record({"machine": {"load": 99.0}, "limits": {"noise": {"cold": 0.2}}}))
    assert shaky["next"][0] == "gdsload bench /data/imagenet --turns 25 --budget 8min"
    assert shaky["why"] == "Other processes are busy (load 99.0 on 112 cores)."
    for budget_s, option in ((120.0, "--budget 8min"), (None, "--seconds 6")):
        short = verdict(made_record(*CASES["too short"][1], {"conditions": {"budget_s": budget_s}}))
        assert short["next"][0] == f"gdsload bench /data/imagenet {option}"


@given(
    gain=st.floats(-0.9, 3),
    noise=st.floats(0, 0.15),
    spread=st.lists(st.floats(0.5, 2), min_size=9, max_size=9),
)
def test_a_difference_below_the_noise_is_never_claimed(gain, noise, spread):
    rows = table(row("gds", 10 * (1 + gain), spread=spread), row("bounce", 10, spread=[1] * 9))
    found = verdict(made_record({"cold": rows, "limits": {"noise": {"cold": noise}}}))
    if found["case"] in ("helps", "worse"):
        assert abs(found["gain"]) > max(0.04, 2 * noise)
        assert found["chance"] < 0.01
        assert (found["case"] == "helps") == (found["gain"] > 0)
    else:
        assert found["case"] in ("fits memory", "saves processors", "undecided")


STEPS = {
    "no": (38.0, [], "Loading is not your bottleneck: a step of 38.0 ms needs 0.44 GB/s, the loader reads 11.4 or more."),
    "close": (
        1.55, [], "Loading just keeps up in cold epochs: a step of 1.6 ms needs 10.8 GB/s, the loader reads 11.4.",
    ),
    "yes, in cold epochs": (
        1.18, [], ("Loading is your bottleneck in cold epochs: you need 14.2 GB/s, the drive delivers at most 11.9; 20 % of "
        "a step is starved. From the second epoch on the loader reads 52.3 from memory."),
    ),
    "yes, in every epoch": (
        0.2, [{"dataset": {"fits_memory": False}}],
        ("Loading is your bottleneck in every epoch: you need 83.9 GB/s, the drive delivers at most 11.9; 86 % of a step "
        "is starved."),
    ),
    "yes, although the drive has more": (
        1.5, [FAST_DRIVE, {"cold": table(row("bounce", 6.1, asked="auto")), "hot": None}],
        ("Loading is your bottleneck in cold epochs: you need 11.2 GB/s, the loader reads 6.1 of the drive's 24.0; 45 "
        "% of a step is starved."),
    ),
    "yes, and the drive has less": (
        0.5, [FAST_DRIVE, {"cold": table(row("bounce", 6.1, asked="auto")), "hot": None}],
        ("Loading is your bottleneck in cold epochs: you need 33.6 GB/s, the drive delivers at most 24.0, and the loader "
        "reads 6.1; 82 % of a step is starved."),
    ),
    "unknown": (38.0, [{"cold": None, "hot": None}], "a step of 38.0 ms needs 0.44 GB/s; no row was measured."),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_a_step_and_loading(name):
    step_ms, changes, sentence = STEPS[name]
    found = verdict(made_record({"conditions": {"step_ms": step_ms}}, *changes))["loading"]
    assert (found["answer"], found["sentence"]) == (name.partition(",")[0], sentence)
    assert found["needs_gb_per_s"] == pytest.approx(2**24 / step_ms / 1e6)
    for state, share in found["starved_share"].items():
        given_rate = {"cold": 11.4, "hot": 52.3}[state] if not changes or "cold" not in changes[-1] else 6.1
        assert share == pytest.approx(max(0, 1 - given_rate / found["needs_gb_per_s"]))


def test_more_drives_are_counted():
    found = verdict(made_record({"conditions": {"step_ms": 0.5}}))["loading"]
    assert found["do"] == 'No loader is that fast. Use 3 such drives, encoded images or `cache="vram"`.'
    found = verdict(made_record({"conditions": {"step_ms": 0.2}, "cold": None}))["loading"]
    assert found["do"].startswith("No loader is that fast, since the link is the limit.")
