"""The verdict is a pure function of the findings."""

from __future__ import annotations

import itertools

import pytest

from gdsload.tools.doctor import Finding, judge


def findings(**changes):
    evidence = {
        "gpu.device": {"usable": True, "kind": "cuda"},
        "cufile.probe": {"proven": True, "status": "ok", "path": "gds-p2p"},
        "gpu.mapping": {"registered": True},
        "packages.cuda-bindings": {"works": True},
        "memory.page-cache": {"fits": True},
        "storage.filesystem": {},
    }
    for name, change in changes.items():
        evidence[name.replace("__", ".").replace("page_cache", "page-cache").replace("a_b", "a-b")] |= change
    return [Finding(check, "ok", f"about {check}", evidence=values) for check, values in evidence.items()]


POSIX = {"proven": False, "path": "cufile-posix"}


@pytest.mark.parametrize(
    ("changes", "backend", "why"),
    [
        ({}, "gds", "gds-p2p"),
        ({"gpu__device": {"usable": False}}, "host", "about gpu.device"),
        ({"gpu__device": {"kind": "xpu"}}, "host", "xpu"),
        ({"gpu__device": {"kind": "hip"}}, "bounce", "AMD"),
        ({"packages__cuda_bindings": {"works": False}}, "bounce", "cuda-bindings"),
        ({"cufile__probe": POSIX}, "mapped", "from the page cache"),
        ({"cufile__probe": POSIX, "gpu__mapping": {"registered": False}}, "bounce", "cannot be registered"),
        ({"cufile__probe": POSIX, "memory__page_cache": {"fits": False}}, "bounce", "do not fit"),
        ({"cufile__probe": POSIX, "gpu__mapping": {"slow": True}}, "bounce", "too slowly"),
    ],
)
def test_the_table(changes, backend: str, why: str):
    verdict = judge(findings(**changes))
    assert verdict.backend == backend
    assert why in verdict.why


def test_gds_never_without_proof():
    for usable, proven, registered, works, fits in itertools.product((True, False, None), repeat=5):
        verdict = judge(
            findings(
                gpu__device={"usable": usable}, cufile__probe={"proven": proven},
                gpu__mapping={"registered": registered},
                packages__cuda_bindings={"works": works}, memory__page_cache={"fits": fits},
            )
        )  # fmt: skip
        assert (verdict.backend == "gds") == (usable is True and proven is True and works is True)
        assert verdict.backend != "host" or usable is not True


@pytest.mark.parametrize(
    "left_out", ["gpu.device", "cufile.probe", "gpu.mapping", "packages.cuda-bindings", "memory.page-cache"]
)
def test_what_was_not_looked_at_counts_as_not_there(left_out: str):
    verdict = judge([finding for finding in findings() if finding.check != left_out])
    expected = {"gpu.device": "host", "cufile.probe": "mapped", "packages.cuda-bindings": "bounce"}
    assert verdict.backend == expected.get(left_out, "gds")
    assert judge([]).backend == "host"


@pytest.mark.parametrize(
    ("changes", "worth"),
    [
        ({}, "only for first epochs"),
        ({"memory__page_cache": {"fits": False}}, "not known without a measurement"),
        ({"storage__filesystem": {"in_memory": True}}, "no: the data are in memory"),
        ({"gpu__mapping": {"coherent": True}}, "hardly"),
        ({"gpu__device": {"usable": False}}, ""),
        ({"gpu__device": {"kind": "hip"}}, ""),
    ],
)
def test_what_dma_would_be_worth(changes, worth: str):
    said = judge(findings(**changes)).worth
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
    known = [one for one in findings(cufile__probe=POSIX) if one.check not in bad]
    known += [Finding(check, "warning", f"about {check}") for check in bad]
    assert judge(known).missing == missing
    assert judge(findings()).missing == ""
