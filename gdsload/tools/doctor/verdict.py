"""The ways to DMA and the choice of the backend, derived from the findings.

There are two ways: Linux's own P2PDMA, which needs no kernel module, and nvidia-fs. Some steps are the same for both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gdsload.backends.names import BackendName
from gdsload.tools.doctor.finding import Finding, Fix, Verdict, Way, WayName

_COMMON = (
    "machine.wsl", "packages.cuda-bindings", "cufile.library", "cufile.system-libraries", "cufile.config",
    "cufile.variables", "gpu.slice", "gpu.bar1", "storage.filesystem",
    "storage.drives", "storage.extents", "cufile.udev",
)  # fmt: skip
CONDITIONS: dict[WayName, tuple[str, ...]] = {
    "p2pdma": tuple(
        f"cufile.p2p-{name}" for name in ("gpu", "drive", "kernel", "option", "driver", "bar1", "multipath", "config")
    ),
    "nvidia-fs": ("cufile.nvfs-driver", "cufile.nvfs-nvme", "cufile.nvidia-fs", "cufile.nvfs-bugs"),
}
"""The requirements of each way: checks whose evidence has ``fulfilled`` if they apply."""
_NOKASLR = Fix("Boot with the kernel parameter nokaslr: P2PDMA can fail without it on x86-64", "root", "a reboot")
_LOG = Fix("Read cuFile's own log in the evidence of cufile.probe (--json)")
TITLES = {"p2pdma": "P2PDMA, no kernel module", "nvidia-fs": "nvidia-fs, a kernel module"}
"""A short title of each way."""
_CAUSES = ("cufile.nvfs-bugs", "cufile.udev", "storage.filesystem")


def find_ways(findings: Iterable[Finding]) -> tuple[Way, ...]:
    """The ways to DMA; none without a CUDA GPU."""
    known = {finding.check: finding for finding in findings}
    if "gpu.device" not in known or known["gpu.device"].evidence.get("kind") != "cuda":
        return ()
    bad = [one for check in _COMMON if (one := known.get(check)) and one.bad and one.fix]
    common = list({one.fix: one for one in reversed(bad)}.values())[::-1]  # of equal remedies the first
    return tuple(_way(name, known, common) for name in CONDITIONS)


def nearest_first(ways: Iterable[Way]) -> list[Way]:
    """Sort the ways: the one with the fewest obstacles and steps comes first."""
    return sorted(ways, key=lambda way: (len(way.obstacles), len(way.steps)))


def _way(name: WayName, known: dict[str, Finding], common: list[Finding]) -> Way:
    found = [known[check] for check in CONDITIONS[name] if check in known and "fulfilled" in known[check].evidence]
    failing = [one for one in found if one.evidence.get("fulfilled") is False]
    holds = sum(one.evidence.get("fulfilled") is True for one in found)
    steps = [*common, *(one for one in failing if one.fix)]
    obstacles = tuple(one.message for one in failing if not one.fix)
    probe = known.get("cufile.probe")
    if probe and probe.evidence.get("proven") is False and not steps and not obstacles and holds == len(found):
        steps = [replace(probe, fix=_NOKASLR if name == "p2pdma" else _LOG)]
    unclear = tuple(one.message for one in found if one.evidence.get("fulfilled") is None)
    return Way(name, holds, len(found), tuple(steps), len(common), obstacles, unclear)


def script(ways: Iterable[Way], others: Iterable[Finding] = ()) -> list[str]:
    """A shell script with the remedies of other findings and the steps of the nearest way; the other way is a comment.

    A command that several steps need, such as a reboot, appears only in the last of them.
    """
    parts = [[line for one in others if one.fix.commands for line in _lines("besides", one.fix)]]
    for place, way in enumerate(nearest_first(ways)):
        fixes = [step.fix for step in (way.steps[way.common :] if place else way.steps) if not way.obstacles]
        head = [f"# {'or' if place else 'the nearest way'}: {TITLES[way.name]}"]
        head += [f"# not possible here: {obstacle}" for obstacle in way.obstacles]
        lines = [line for number, fix in enumerate(fixes, 1) for line in _lines(str(number), fix)]
        lines = [line for at, line in enumerate(lines) if line not in lines[at + 1 :]]
        parts.append(head + [line if line.startswith("#") or not place else f"# {line}" for line in lines])
    return [line for part in parts if part for line in (*part, "")][:-1]


def _lines(title: str, fix: Fix) -> list[str]:
    return [f"# {title}. {fix.who}: {fix.does}{f' ({fix.takes})' if fix.takes else ''}", *fix.commands]


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
    missing = _missing(known) if cuda and backend != "gds" else ""
    worth = _worth(known) if cuda else ""
    return Verdict(backend, why, missing, worth)


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


def _missing(known: dict[str, Finding]) -> str:
    """The reason why there is no DMA: a known cause, or the result of the trial read and the first missing step."""
    causes = [one.message for name in _CAUSES if (one := known.get(name)) and one.bad]
    asked = [known["cufile.probe"].message if "cufile.probe" in known else "no trial read with cuFile was made"]
    steps = [step for way in nearest_first(find_ways(known.values()))[:1] for step in way.steps]
    lacks = [step.message for step in steps if step.check != "cufile.probe"]
    return causes[0] if causes else "; ".join(asked + lacks[:1])


def _worth(known: dict[str, Finding]) -> str:
    """The worth of DMA, as far as known without a measurement."""
    made = "" if _evidence(known, "storage.path").get("shards", 1) else "--make 8GiB "
    measure = f"`gdsload bench {made}PATH` measures it in two minutes"
    if _evidence(known, "storage.filesystem").get("in_memory"):
        return "no: the data are in memory already"
    if _evidence(known, "gpu.mapping").get("coherent"):
        return f"hardly: CPU and GPU have coherent memory, so a copy costs little; {measure}"
    if _evidence(known, "memory.page-cache").get("fits"):
        return f"only for first epochs: the data fit into memory, and later epochs read them from there; {measure}"
    return f"not known without a measurement: {measure}"
