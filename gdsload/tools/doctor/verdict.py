"""The choice of the backend from the findings: a pure function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gdsload.backends.names import BackendName
from gdsload.tools.doctor.finding import Finding, Verdict, Way
from gdsload.tools.doctor.ways import CONDITIONS, find_ways, nearest_first

_NEEDED = ("gpu.", "packages.", "storage.path")
"""Checks that any GPU backend needs; others decide between bounce and gds, or about speed."""
_CAUSES = ("cufile.nvfs-bugs", "cufile.udev", "storage.filesystem")


def judge(findings: Iterable[Finding]) -> Verdict:
    """Choose the backend from the findings.

    - ``host``: torch finds no accelerator, or one without CUDA or ROCm, or the user chose the CPU.
    - ``gds``: cuFile's counters moved under nvidia-fs or P2PDMA, and cuda-bindings can be imported.
    - ``mapped``: pages of files can be registered with CUDA, the GPU reads them as fast as other memory, and the data
      fit into memory (or their size is not known).
    - ``bounce``: otherwise.
    """
    known = {finding.check: finding for finding in findings}
    backend, why = _choose(known)
    cuda = backend != "host" and _evidence(known, "gpu.device").get("kind") == "cuda"
    ways = find_ways(known.values())
    missing = _missing(known, ways) if cuda and backend != "gds" else ""
    worth = _worth(known) if cuda else ""
    return Verdict(backend, why, missing, worth, _improvements(known, backend, ways))


def _evidence(known: dict[str, Finding], check: str) -> dict[str, Any]:
    return known[check].evidence if check in known else {}


def _choose(known: dict[str, Finding]) -> tuple[BackendName, str]:
    device = _evidence(known, "gpu.device")
    if device.get("usable") is not True:
        return "host", known["gpu.device"].message if "gpu.device" in known else "the GPU was not checked"
    if device.get("kind") == "hip":
        return "bounce", "through pinned memory; AMD GPUs have neither cuFile nor registered pages of files"
    if device.get("kind") != "cuda":
        return "host", f"the accelerator is {device.get('kind')}, and torch copies the batches to it"
    probe, mapping = _evidence(known, "cufile.probe"), _evidence(known, "gpu.mapping")
    if probe.get("proven") is True:
        if _evidence(known, "packages.cuda-bindings").get("works") is True:
            return "gds", f"a trial read used DMA from the drive to the GPU ({probe.get('path')} by cuFile's counters)"
        return "bounce", "through pinned memory; the gds backend needs cuda-bindings, which cannot be imported"
    if mapping.get("registered") is not True:
        return "bounce", "through pinned memory; pages of files cannot be registered with CUDA"
    if mapping.get("slow") is True:
        return "bounce", "through pinned memory; this GPU reads pages of files too slowly"
    if _evidence(known, "memory.page-cache").get("fits") is False:
        return "bounce", "through pinned memory; the data do not fit into the page cache, which mapped needs"
    return "mapped", "the GPU reads shards from the page cache; bounce reads those that are not in it yet"


def _missing(known: dict[str, Finding], ways: Sequence[Way]) -> str:
    """The reason why there is no DMA: a known cause, or the result of the trial read and the first missing step."""
    causes = [one.message for name in _CAUSES if (one := known.get(name)) and one.bad]
    asked = [known["cufile.probe"].message if "cufile.probe" in known else "no trial read with cuFile was made"]
    lacks = [step.message for way in nearest_first(ways)[:1] for step in way.steps if step.check != "cufile.probe"]
    return causes[0] if causes else "; ".join(asked + lacks[:1])


def _worth(known: dict[str, Finding]) -> str:
    """Whether DMA is worth it, as far as known without a measurement."""
    made = "" if _evidence(known, "storage.path").get("shards", 1) else "--make 8GiB "
    measure = f"`gdsload bench {made}PATH` measures it in two minutes"
    if _evidence(known, "storage.filesystem").get("in_memory"):
        return "no: the data are in memory already"
    if _evidence(known, "gpu.mapping").get("coherent"):
        return f"hardly: CPU and GPU have coherent memory, so a copy costs little; {measure}"
    if _evidence(known, "memory.page-cache").get("fits"):
        return f"only for first epochs: the data fit into memory, and later epochs read them from there; {measure}"
    return f"not known without a measurement: {measure}"


def _improvements(known: dict[str, Finding], backend: str, ways: Sequence[Way]) -> list[str]:
    """The remedies, errors first. On the CPU only those for a GPU; otherwise all except those of the longer way."""
    order = {"error": 0, "warning": 1}
    longer = {check for way in nearest_first(ways)[1:] for check in CONDITIONS[way.name]}
    bad = [finding for finding in known.values() if finding.bad and finding.fix and finding.check not in longer]
    if backend == "host":
        bad = [finding for finding in bad if finding.check.startswith(_NEEDED)]
    bad.sort(key=lambda finding: order[finding.severity])
    return list(dict.fromkeys(f"{finding.check}: {finding.remedy}" for finding in bad))
