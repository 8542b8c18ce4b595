"""The two ways to DMA, derived from the findings: Linux's own P2PDMA, which needs no kernel module, and nvidia-fs.

Some steps are the same for both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from gdsload.tools.doctor.finding import Finding, Fix, Way

_COMMON = (
    "machine.wsl", "packages.cuda-bindings", "cufile.library", "cufile.system-libraries", "cufile.config",
    "cufile.variables", "gpu.slice", "gpu.bar1", "storage.filesystem",
    "storage.drives", "storage.extents", "cufile.udev",
)  # fmt: skip
CONDITIONS = {
    "p2pdma": tuple(
        f"cufile.p2p-{name}" for name in ("gpu", "drive", "kernel", "option", "driver", "bar1", "multipath", "config")
    ),
    "nvidia-fs": ("cufile.nvfs-driver", "cufile.nvfs-nvme", "cufile.nvidia-fs", "cufile.nvfs-bugs"),
}
"""The requirements of each way: checks whose evidence has ``fulfilled`` if they apply."""
_NOKASLR = Fix("Boot with the kernel parameter nokaslr: P2PDMA can fail without it on x86-64", "root", "a reboot")
_LOG = Fix("Read cuFile's own log in the evidence of cufile.probe (--json)")


def find_ways(findings: Iterable[Finding]) -> tuple[Way, ...]:
    """The ways to DMA; none without a CUDA GPU."""
    known = {finding.check: finding for finding in findings}
    if "gpu.device" not in known or known["gpu.device"].evidence.get("kind") != "cuda":
        return ()
    bad = [one for check in _COMMON if (one := known.get(check)) and one.bad and one.fix]
    common = list({one.fix: one for one in reversed(bad)}.values())[::-1]  # of equal remedies the first
    names: tuple[Literal["p2pdma", "nvidia-fs"], ...] = ("p2pdma", "nvidia-fs")
    return tuple(_way(name, known, common) for name in names)


def nearest_first(ways: Iterable[Way]) -> list[Way]:
    """Sort the ways: the one with the fewest obstacles and steps comes first."""
    return sorted(ways, key=lambda way: (len(way.obstacles), len(way.steps)))


def _way(name: Literal["p2pdma", "nvidia-fs"], known: dict[str, Finding], common: list[Finding]) -> Way:
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
    parts = [[line for one in others if one.fix and one.fix.commands for line in _lines("besides", [one.fix])]]
    for place, way in enumerate(nearest_first(ways)):
        fixes = [step.fix for step in (way.steps[way.common :] if place else way.steps) if not way.obstacles]
        head = [f"# {'or' if place else 'the nearest way'}: {TITLES[way.name]}"]
        head += [f"# not possible here: {obstacle}" for obstacle in way.obstacles]
        lines = [line for number, fix in enumerate(fixes, 1) for line in _lines(str(number), [fix])]
        lines = [line for at, line in enumerate(lines) if line not in lines[at + 1 :]]
        parts.append(head + [line if line.startswith("#") or not place else f"# {line}" for line in lines])
    return [line for part in parts if part for line in (*part, "")][:-1]


def _lines(title: str, fixes: Iterable[Fix]) -> list[str]:
    return [
        line
        for fix in fixes
        for line in (f"# {title}. {fix.who}: {fix.does}{f' ({fix.takes})' if fix.takes else ''}", *fix.commands)
    ]


TITLES = {"p2pdma": "P2PDMA, no kernel module", "nvidia-fs": "nvidia-fs, a kernel module"}
"""A short title of each way."""
