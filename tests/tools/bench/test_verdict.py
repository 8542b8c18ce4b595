"""The verdict on made-up records: each case of its table, and that it never claims more than the record shows."""

import copy
import json
import re

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
    "fits memory": ("no", [], ""),
    "equal": ("no", [{"dataset": {"fits_memory": False}}], ""),
    "saves processors": ("no", [SMALL_MACHINE], "0.66 4"),
    "helps": (
        "yes", [FAST_DRIVE, {"cold": table(row("gds", 23.1, asked="auto gds", cpu=0.004), BOUNCE)}],
        "23.1 14.0 +65 1.8",
    ),
    "unavailable, could help": ("unavailable", [FAST_DRIVE, {"cold": table(BOUNCE)}], "1.7 58"),
    "unavailable, useless": (
        "unavailable", [SLOW_DRIVE, {"cold": table(row("bounce", 3.1, asked="auto"))}], "3.1 0.060 0.19",
    ),
    "unavailable, no limit": ("unavailable", [NO_DRIVE, {"cold": table(BOUNCE)}], ""),
    "worse": ("worse", [TOO_SLOW_GDS, {"dataset": {"read_bytes": 4096}}], "0.40 2.9 4"),
    "no gpu": ("unknown", [CPU_MACHINE], "0.61 69 0.88 2.8"),
    "noisy": ("unknown", [CPU_MACHINE, {"limits": {"noise": {"cold": 0.38}}}], "38"),
    "too short": ("unknown", [{"cold": table(row("gds", 9.0, batches=4), BOUNCE)}], "9 4 5"),
    "not cold": ("unknown", [{"cold": NOT_COLD}], "4711"),
    "not hot": ("unknown", [{"cold": None, "hot": NOT_HOT}], "2 1"),
    "in memory": ("no", [{"cold": None}], "52.3 95 11.6"),
    "hot only": ("unknown", [NO_DRIVE, {"cold": None, "hot": table(HOT["rows"][0], state="hot")}], ""),
    "not asked": ("unknown", [{"cold": table(row("bounce", 11.4))}], ""),
    "undecided": (
        "unknown", [{"cold": table(row("gds", 11.6, spread=NOISY), row("bounce", 11.4, spread=NOISY[::-1]))}],
        "-30 +49",
    ),
    "stopped": ("unknown", [{"cold": None, "hot": None, "stopped": "after 0 of 20 turns"}], ""),
}  # fmt: skip
MORE = [
    (
        "too short", "unknown",
        [{"cold": table(row("gds", 11.6, spread=SPREAD[:4]), row("bounce", 11.4, spread=AGAIN[:1]))}], "1 900 5",
    ),
    ("not asked", "unknown", [{"cold": table(COLD["rows"][0])}], ""),
    ("no gpu", "no", [{"conditions": {"device": "xpu:0"}, "hot": None}], "0 11.4 96 11.9"),
    ("in memory", "no", [{"cold": None, "hot": table(HOT["rows"][0], state="hot")}], "52.3 95 11.9"),
    ("no gpu", "unknown", [CPU_MACHINE, {"cold": NOT_COLD}], "2.8"),
    (
        "unavailable, useless", "unavailable",
        [{"cold": table(row("bounce", 10.5, asked="auto", cpu=None)), "limits": {"noise": {"cold": 0.14}}}], "11.9 88",
    ),
    ("worse", "worse", [{"cold": table(row("gds", 9.0, asked="auto gds"), row("bounce", 11.4))}], "9.0 11.4"),
    ("helps", "yes", [{"cold": table(row("gds", 11.6, cpu=None), row("bounce", 9.0, cpu=None))}], "11.6 9.0 +29"),
    ("unavailable, useless", "unavailable", [{"cold": table(row("bounce", 11.0, asked="auto", cpu=None))}], "11.9 92"),
]  # fmt: skip
TABLE = [(case, *rest) for case, rest in CASES.items()] + MORE
"""The case, whether GDS helps, what is changed in the record, and the figures of the sentence."""


def figures_of(sentence):
    return " ".join(re.findall(r"[-+]?\b\d+(?:\.\d+)?\b", sentence))


@pytest.mark.parametrize(("case", "gds", "changes", "figures"), TABLE)
def test_each_case_has_a_record_that_yields_it(case, gds, changes, figures):
    record = made_record(*changes)
    kept = copy.deepcopy(record)
    found = verdict(record)
    assert record == kept
    assert (found["case"], found["gds"], figures_of(found["sentence"])) == (case, gds, figures)
    assert found["do"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (gds == "unknown") == (found["sentence"].startswith(("No verdict", "The batches stay")))


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
    for case, used in (("helps", "it"), ("worse", "bounce")):
        assert f"`auto` uses {used}." in verdict(made_record(*CASES[case][1]))["sentence"]
    assert "nothing else was measured" in verdict(made_record({"cold": table(COLD["rows"][0])}))["sentence"]
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


HALF_SPEED = {"cold": table(row("bounce", 6.1, asked="auto")), "hot": None}
STEPS = [
    ("no", 38.0, [], "38.0 0.44 11.4"),
    ("close", 1.55, [], "1.6 10.8 11.4"),
    ("yes", 1.18, [], "14.2 11.9 20 52.3"),
    ("yes", 0.2, [{"dataset": {"fits_memory": False}}], "83.9 11.9 86"),
    ("yes", 1.5, [FAST_DRIVE, HALF_SPEED], "11.2 6.1 24.0 45"),
    ("yes", 0.5, [FAST_DRIVE, HALF_SPEED], "33.6 24.0 6.1 82"),
    ("unknown", 38.0, [{"cold": None, "hot": None}], "38.0 0.44"),
]
"""Whether loading is the bottleneck, of a step in ms, after changes of the record; the figures of the sentence."""


@pytest.mark.parametrize(("answer", "step_ms", "changes", "figures"), STEPS)
def test_a_step_and_loading(answer, step_ms, changes, figures):
    found = verdict(made_record({"conditions": {"step_ms": step_ms}}, *changes))["loading"]
    assert (found["answer"], figures_of(found["sentence"])) == (answer, figures)
    assert ("every epoch" in found["sentence"]) == ({"dataset": {"fits_memory": False}} in changes)
    assert found["needs_gb_per_s"] == pytest.approx(2**24 / step_ms / 1e6)
    for state, share in found["starved_share"].items():
        given_rate = 6.1 if HALF_SPEED in changes else {"cold": 11.4, "hot": 52.3}[state]
        assert share == pytest.approx(max(0, 1 - given_rate / found["needs_gb_per_s"]))


def test_more_drives_are_counted():
    found = verdict(made_record({"conditions": {"step_ms": 0.5}}))["loading"]
    assert found["do"] == 'No loader is that fast. Use 3 such drives, encoded images or `cache="vram"`.'
    found = verdict(made_record({"conditions": {"step_ms": 0.2}, "cold": None}))["loading"]
    assert found["do"].startswith("No loader is that fast, since the link is the limit.")
