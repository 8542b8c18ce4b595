"""Findings, the verdict on them, and the report that holds both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from gdsload.backends.names import BackendName

Severity = Literal["ok", "info", "warning", "error", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of one check.

    Attributes:
        check: the check's name, ``group.what``; stable.
        severity: ``ok``, as it should be; ``info``, a fact that needs no action, or one that does not matter here;
            ``warning``, it costs speed or a better backend; ``error``, a part that should work does not; ``unknown``,
            it could not be found out.
        message: what was found, in one sentence.
        remedy: what to do about it; empty where there is nothing to do.
        evidence: the facts of the finding: JSON types only, keys stable.
    """

    check: str
    severity: Severity
    message: str
    remedy: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The backend that data at the path get on this machine, and why.

    Attributes:
        backend: ``gds``, ``mapped``, ``bounce`` or ``host``.
        why: the evidence for it.
        improvements: what would make it better, the most important first.
    """

    backend: BackendName
    why: str
    improvements: list[str]


@dataclass(frozen=True, slots=True)
class Report:
    """The doctor's report: facts about the machine, one finding for each check, and the verdict."""

    machine: dict[str, Any]
    findings: tuple[Finding, ...]
    verdict: Verdict


def _of(severity: Severity) -> Callable[..., Finding]:
    """A function that makes findings of a severity: ``warning(message, remedy, key=value)``; the runner names them."""

    def make(message: str, remedy: str = "", **evidence: Any) -> Finding:
        return Finding("", severity, message, remedy, evidence)

    return make


_WORST: tuple[Severity, ...] = ("error", "warning", "unknown", "info", "ok")
error, warning, unknown, info, ok = map(_of, _WORST)


def clip(text: object, length: int = 120) -> str:
    """Foreign text for a message: one line, printable, not long."""
    line = "".join(char if char.isprintable() else " " for char in str(text)[: 4 * length])
    line = " ".join(line.split())
    return line if len(line) <= length else line[: length - 1] + "…"


def joined(found: list[tuple[str, Finding]]) -> Finding:
    """One finding of several, each of a place: as bad as the worst, with its remedy and evidence, and all messages."""
    if len(found) == 1:
        return found[0][1]
    worst = min((one for _, one in found), key=lambda one: _WORST.index(one.severity))
    said = [one.message if where in one.message else f"{where}: {one.message}" for where, one in found]
    if len({one.message for _, one in found}) == 1:
        said = [worst.message]
    evidence = {**worst.evidence, "volumes": {where: one.evidence for where, one in found}}
    return Finding("", worst.severity, "; ".join(said), worst.remedy, evidence)
