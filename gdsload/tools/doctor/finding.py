"""Findings, their remedies, the verdict, and the report that holds all of it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from gdsload.backends.names import BackendName

Severity = Literal["ok", "info", "warning", "error", "unknown"]
Who = Literal["user", "root", "container"]
WayName = Literal["p2pdma", "nvidia-fs"]
INITRAMFS = "sudo update-initramfs -u -k all || sudo dracut --force --regenerate-all"
REBOOT = "sudo reboot"


@dataclass(frozen=True, slots=True)
class Fix:
    """The remedy of a finding; false if there is none.

    Attributes:
        does: what to do, in the imperative.
        who: who has to do it: ``user``, ``root`` of the machine, or ``container``, the person who starts or builds it.
        takes: its cost, such as ``a reboot``; empty if there is none.
        commands: lines to paste into a shell; lines for another file or program are comments.
    """

    does: str
    who: Who = "user"
    takes: str = ""
    commands: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.does)

    def __str__(self) -> str:
        lines = "; ".join(command.removeprefix("# ") for command in self.commands)
        return f"{self.does}: {lines}" if lines else self.does


NO_FIX = Fix("")


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of one check.

    Attributes:
        check: the name of the check, ``group.subject``; stable.
        severity: ``ok``: as it should be; ``info``: a fact that needs no action, or is irrelevant here; ``warning``:
            costs speed or prevents a faster backend; ``error``: something that should work does not; ``unknown``: the
            check could not find out.
        message: the finding in one sentence.
        fix: the remedy.
        evidence: facts that the verdict needs, or that the message lacks: JSON types. Requirements of DMA have
            ``fulfilled``.
    """

    check: str
    severity: Severity
    message: str
    fix: Fix = NO_FIX
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def bad(self) -> bool:
        """True if something should be done."""
        return self.severity in ("warning", "error")

    @property
    def remedy(self) -> str:
        """The remedy in one line; empty if there is none."""
        return str(self.fix)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to DMA from the drive to the GPU.

    Attributes:
        holds: number of its requirements that are met.
        of: number of its requirements.
        steps: findings whose remedies set it up, in order. The first `common` of them are the same for both ways.
        common: see `steps`.
        obstacles: requirements that are not met and that no step can meet on this machine.
        unclear: requirements that could not be checked.
    """

    name: WayName
    holds: int
    of: int
    steps: tuple[Finding, ...]
    common: int
    obstacles: tuple[str, ...]
    unclear: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The backend for data at the path on this machine, and the reason.

    Attributes:
        why: the evidence for it.
        missing: the reason why it is not ``gds``; empty if it is, and without a GPU.
        worth: whether DMA is worth it here, as far as known without a measurement; empty without a GPU.
    """

    backend: BackendName
    why: str
    missing: str
    worth: str


@dataclass(frozen=True, slots=True)
class Report:
    """The report of the doctor: facts about the machine, the findings, the verdict, and the ways to DMA."""

    machine: dict[str, Any]
    findings: tuple[Finding, ...]
    verdict: Verdict
    ways: tuple[Way, ...]


def _of(severity: Severity) -> Callable[..., Finding]:
    """A function that makes findings of a severity: ``warning(message, fix, key=value)``; the runner sets `check`."""

    def make(message: str, fix: Fix | str = "", **evidence: Any) -> Finding:
        return Finding("", severity, message, Fix(fix) if isinstance(fix, str) else fix, evidence)

    return make


WORST_FIRST: tuple[Severity, ...] = ("error", "warning", "unknown", "info", "ok")
error, warning, unknown, info, ok = map(_of, WORST_FIRST)


def clip(text: object, length: int = 120) -> str:
    """Make foreign text safe for a message: one printable line of limited length."""
    line = "".join(char if char.isprintable() else " " for char in str(text)[: 4 * length])
    line = " ".join(line.split())
    return line if len(line) <= length else line[: length - 1] + "…"


def quoted(path: object) -> str:
    """A path, quoted for a shell command."""
    return shlex.quote(clip(path, 4096))
