"""`gdsload doctor`: the obstacles between data at a path and the GPU of this machine, with remedies.

report = gdsload.tools.doctor.diagnose("shards/")
report.verdict.backend, report.verdict.why, report.verdict.improvements
report.findings        # one for each check: check, severity, message, remedy, evidence
"""

from __future__ import annotations

from gdsload.tools.doctor.checkup import CHECKS, diagnose
from gdsload.tools.doctor.finding import Finding, Report, Severity, Verdict
from gdsload.tools.doctor.system import Calls, System
from gdsload.tools.doctor.verdict import judge

__all__ = ["CHECKS", "Calls", "Finding", "Report", "Severity", "System", "Verdict", "diagnose", "judge"]
