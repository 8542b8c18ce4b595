"""`gdsload bench`: the rate at which a dataset's samples arrive on the device, directly and by way of RAM."""

from gdsload.tools.bench.bench_plan import BenchPlan, make_plan
from gdsload.tools.bench.measure import run_bench

__all__ = ["BenchPlan", "make_plan", "run_bench"]
