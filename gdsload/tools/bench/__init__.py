"""`gdsload bench`: the rate at which a dataset's samples arrive on the device, directly and by way of RAM.

plan      the measurement and the machine
routes    the contenders: how each opens a loader and gets a batch to the device
check     their bytes against the dataset's, before anything is timed
cache     files out of the page cache and into it, checked by the kernel
trial     one timed run
run       all of it, in order
"""

from gdsload.tools.bench.bench_plan import BenchPlan, make_plan
from gdsload.tools.bench.measure import run_bench

__all__ = ["BenchPlan", "make_plan", "run_bench"]
