"""`gdsload bench`: the rates at which a dataset's samples arrive on the device, beside the limits of the machine."""

from gdsload.tools.bench.bench_plan import BenchPlan, make_plan, plan_text
from gdsload.tools.bench.made import make_dataset
from gdsload.tools.bench.measure import run_bench

__all__ = ["BenchPlan", "make_dataset", "make_plan", "plan_text", "run_bench"]
