"""`gdsload doctor`: the obstacles between data at a path and the GPU of this machine, with remedies.

report = gdsload.tools.doctor.diagnose("shards/")
report.verdict.backend, report.verdict.why, report.verdict.missing, report.verdict.worth
report.findings        # one for each check: check, severity, message, fix, evidence
report.ways            # to DMA: holds, of, steps, obstacles
"""

from __future__ import annotations

from gdsload.tools.doctor.checkup import CHECKS, diagnose
from gdsload.tools.doctor.finding import Finding, Fix, Report, Severity, Verdict, Way
from gdsload.tools.doctor.system import Calls, System
from gdsload.tools.doctor.verdict import judge, script

__all__ = [
    "CHECKS", "Calls", "Finding", "Fix", "Report", "Severity", "System", "Verdict", "Way", "diagnose", "judge",
    "script",
]  # fmt: skip
