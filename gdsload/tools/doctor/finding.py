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
        does: what to do, as an order.
        who: ``user``, ``root`` of the machine, or ``container``, who starts or builds it.
        takes: its price, such as ``a reboot``; empty if there is none.
        commands: lines to paste into a shell; comments where it is another file or program that they are for.
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
        check: the check's name, ``group.what``; stable.
        severity: ``ok``, as it should be; ``info``, a fact that needs no action, or one that does not matter here;
            ``warning``, it costs speed or a better backend; ``error``, a part that should work does not; ``unknown``,
            it could not be found out.
        message: what was found, in one sentence.
        fix: what to do about it.
        evidence: the facts of the finding: JSON types only, keys stable. Of a condition of a way to DMA, ``fulfilled``.
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
        holds: how many of its conditions are fulfilled.
        of: how many there are.
        steps: findings with the remedies that lead there, in order; the first `common` are those of the other way, too.
        common: see `steps`.
        obstacles: conditions that fail and that no step mends here.
        unclear: conditions that could not be looked at.
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
    """The backend that data at the path get on this machine, and why.

    Attributes:
        why: the evidence for it.
        missing: why it is not ``gds``; empty where it is, and without a GPU.
        worth: what is known of the worth of DMA here; empty without a GPU.
        improvements: what would make it better, the most important first, by the nearest way to DMA.
    """

    backend: BackendName
    why: str
    missing: str
    worth: str
    improvements: list[str]


@dataclass(frozen=True, slots=True)
class Report:
    """Facts about the machine, one finding for each check, the verdict, and the ways to DMA."""

    machine: dict[str, Any]
    findings: tuple[Finding, ...]
    verdict: Verdict
    ways: tuple[Way, ...]


def _of(severity: Severity) -> Callable[..., Finding]:
    """A function that makes findings of a severity: ``warning(message, fix, key=value)``; the runner names them."""

    def make(message: str, fix: Fix | str = "", **evidence: Any) -> Finding:
        return Finding("", severity, message, Fix(fix) if isinstance(fix, str) else fix, evidence)

    return make


WORST_FIRST: tuple[Severity, ...] = ("error", "warning", "unknown", "info", "ok")
error, warning, unknown, info, ok = map(_of, WORST_FIRST)


def clip(text: object, length: int = 120) -> str:
    """Foreign text for a message: one line, printable, not long."""
    line = "".join(char if char.isprintable() else " " for char in str(text)[: 4 * length])
    line = " ".join(line.split())
    return line if len(line) <= length else line[: length - 1] + "…"


def quoted(path: object) -> str:
    """A path as a word of a shell's command."""
    return shlex.quote(clip(path, 4096))
