"""`gdsload doctor`: what keeps data at a path from the GPU on this machine, and what to do about it.

report = gdsload.doctor.diagnose("shards/")
report.verdict.backend, report.verdict.why, report.verdict.improvements
report.findings        # one for each check: check, severity, message, remedy, evidence
"""

from __future__ import annotations

from gdsload.doctor.finding import Finding, Report, Severity, Verdict
from gdsload.doctor.run import CHECKS, diagnose
from gdsload.doctor.system import Calls, System
from gdsload.doctor.verdict import judge

__all__ = ["CHECKS", "Calls", "Finding", "Report", "Severity", "System", "Verdict", "diagnose", "judge"]
