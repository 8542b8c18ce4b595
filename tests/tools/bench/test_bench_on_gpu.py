"""`gdsload bench` on a GPU: both ways end in VRAM with the dataset's bytes, and the record tells them apart."""

import json

import pytest

from gdsload.tools.cli import main

pytestmark = pytest.mark.cuda


def test_both_ways_to_vram_are_measured(varied, numbered, capsys):
    backends = ["auto", "bounce", "mapped", "host"]
    for path, samples in ((varied, 300), (numbered, 512)):
        arguments = [
            "--device",
            "cuda",
            "--trials",
            "2",
            "--shuffle",
            "full",
            "--backends",
            ",".join(backends),
            "--json",
        ]
        assert main(["bench", str(path), *arguments]) == 0
        record = json.loads(capsys.readouterr().out)
        assert record["machine"]["gpu"]
        assert record["conditions"]["device"].startswith("cuda:")
        assert {checked["samples"] for checked in record["verified"]} == {samples}
        ways = {contender["name"]: contender["way"] for contender in record["contenders"]}
        assert ways["direct, auto"] == "SSD→VRAM"
        assert ways["direct, host"] == ways["by RAM"] == "SSD→RAM→VRAM"
        assert record["hot"]["state"] == "hot"
        paths = {entry["contender"]: set(entry["bytes_by_path"]) for entry in record["hot"]["contenders"]}
        assert paths["direct, mapped"] == {"mapped"}
        assert paths["direct, bounce"] <= {"bounce-direct", "bounce-buffered", "host"}
        assert paths["direct, host"] == paths["by RAM"] == {"host"}
        for state in (record["hot"], record["cold"]):
            copied = {entry["contender"] for entry in state["contenders"] if entry["copied_bytes"]}
            assert copied <= {"by RAM"}
