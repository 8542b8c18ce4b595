"""The verdict is a pure function of the findings."""

from __future__ import annotations

import itertools

import pytest

from gdsload.tools.doctor import Finding, judge


def findings(changes=()):
    evidence = {
        "gpu.device": {"usable": True, "kind": "cuda"},
        "cufile.probe": {"proven": True, "status": "ok", "path": "gds-p2p"},
        "gpu.mapping": {"registered": True},
        "packages.cuda-bindings": {"works": True},
        "memory.page-cache": {"fits": True},
        "storage.filesystem": {},
    }
    for check, change in dict(changes).items():
        evidence[check] |= change
    return [Finding(check, "ok", f"about {check}", evidence=values) for check, values in evidence.items()]


POSIX = {"proven": False, "path": "cufile-posix"}


@pytest.mark.parametrize(
    ("changes", "backend", "why"),
    [
        ({}, "gds", "gds-p2p"),
        ({"gpu.device": {"usable": False}}, "host", "about gpu.device"),
        ({"gpu.device": {"kind": "xpu"}}, "host", "xpu"),
        ({"gpu.device": {"kind": "hip"}}, "bounce", "AMD"),
        ({"packages.cuda-bindings": {"works": False}}, "bounce", "cuda-bindings"),
        ({"cufile.probe": POSIX}, "mapped", "from the page cache"),
        ({"cufile.probe": POSIX, "gpu.mapping": {"registered": False}}, "bounce", "cannot be registered"),
        ({"cufile.probe": POSIX, "memory.page-cache": {"fits": False}}, "bounce", "do not fit"),
        ({"cufile.probe": POSIX, "gpu.mapping": {"slow": True}}, "bounce", "too slowly"),
    ],
)
def test_the_table(changes, backend: str, why: str):
    verdict = judge(findings(changes))
    assert verdict.backend == backend
    assert why in verdict.why


def test_gds_never_without_proof():
    assert judge([]).backend == "host"
    for usable, proven, registered, works, fits in itertools.product((True, False, None), repeat=5):
        changes = {
            "gpu.device": {"usable": usable},
            "cufile.probe": {"proven": proven},
            "gpu.mapping": {"registered": registered},
            "packages.cuda-bindings": {"works": works},
            "memory.page-cache": {"fits": fits},
        }
        verdict = judge(findings(changes))
        assert (verdict.backend == "gds") == (usable is True and proven is True and works is True)
        assert verdict.backend != "host" or usable is not True


@pytest.mark.parametrize(
    ("changes", "worth"),
    [
        ({}, "only for first epochs"),
        ({"memory.page-cache": {"fits": False}}, "not known without a measurement"),
        ({"storage.filesystem": {"in_memory": True}}, "no: the data are in memory"),
        ({"gpu.mapping": {"coherent": True}}, "hardly"),
        ({"gpu.device": {"usable": False}}, ""),
        ({"gpu.device": {"kind": "hip"}}, ""),
    ],
)
def test_what_dma_would_be_worth(changes, worth: str):
    said = judge(findings(changes)).worth
    assert said.startswith(worth)
    assert bool(said) == bool(worth)


@pytest.mark.parametrize(
    ("bad", "missing"),
    [
        ((), "about cufile.probe"),
        (("storage.filesystem",), "about storage.filesystem"),
        (("storage.filesystem", "cufile.udev"), "about cufile.udev"),
    ],
)
def test_what_is_missing_is_the_first_known_cause(bad, missing: str):
    known = [one for one in findings({"cufile.probe": POSIX}) if one.check not in bad]
    known += [Finding(check, "warning", f"about {check}") for check in bad]
    assert judge(known).missing == missing
    assert judge(findings()).missing == ""
