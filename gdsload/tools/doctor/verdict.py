"""The choice of the backend from the findings: a pure function."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gdsload.backends.names import BackendName
from gdsload.tools.doctor.finding import Finding, Verdict

_NEEDED = ("gpu.", "packages.", "storage.path")
"""Checks that any GPU backend needs; others decide between bounce and gds, or about speed."""


def judge(findings: Iterable[Finding]) -> Verdict:
    """The backend that data at the path get, by the findings alone.

    - ``host``: torch has no accelerator to use, or one that is no GPU of CUDA's or ROCm's, or the CPU was asked for.
    - ``gds``: cuFile's counters moved under nvidia-fs or P2PDMA, and what gdsload's backend needs can be imported.
    - ``mapped``: pages of files can be registered with CUDA, and the data fit into memory (or their size is not known).
    - ``bounce``: otherwise.
    """
    known = {finding.check: finding for finding in findings}
    backend, why = _choose(known)
    return Verdict(backend, why, _improvements(known, backend))


def _evidence(known: dict[str, Finding], check: str) -> dict[str, Any]:
    return known[check].evidence if check in known else {}


def _choose(known: dict[str, Finding]) -> tuple[BackendName, str]:
    device = _evidence(known, "gpu.device")
    if device.get("usable") is not True:
        return "host", known["gpu.device"].message if "gpu.device" in known else "nothing is known of a GPU"
    if device.get("kind") == "hip":
        return "bounce", "the GPU is AMD's, which has neither cuFile nor pages of files that it can read"
    if device.get("kind") != "cuda":
        return "host", f"the accelerator is {device.get('kind')}, to which torch copies batches"
    probe = _evidence(known, "cufile.probe")
    if probe.get("proven") is True:
        if _evidence(known, "packages.cuda-bindings").get("works") is True:
            return "gds", f"a read was made by DMA ({probe.get('path')}), by cuFile's own counters"
        return "bounce", "cuFile reads by DMA here, but cuda-bindings, which the gds backend needs, cannot be imported"
    no_dma = "no DMA is proven" if probe.get("status") != "ok" else "cuFile does not read by DMA here"
    fits = _evidence(known, "memory.page-cache").get("fits")
    if _evidence(known, "gpu.mapping").get("registered") is not True:
        return "bounce", f"{no_dma}, and pages of files cannot be registered with CUDA"
    if fits is False:
        return (
            "bounce",
            f"{no_dma}, and the data do not fit into memory; parts that are resident go by mapped",
        )
    return (
        "mapped",
        f"{no_dma}; pages can be registered with CUDA, so resident data need no copy by the CPU (else bounce)",
    )


def _improvements(known: dict[str, Finding], backend: str) -> list[str]:
    """Remedies, those for errors first; for the CPU only the obstacles to a GPU."""
    order = {"error": 0, "warning": 1}
    bad = [finding for finding in known.values() if finding.severity in order and finding.remedy]
    if backend == "host":
        bad = [finding for finding in bad if finding.check.startswith(_NEEDED)]
    bad.sort(key=lambda finding: order[finding.severity])
    return list(dict.fromkeys(f"{finding.check}: {finding.remedy}" for finding in bad))
