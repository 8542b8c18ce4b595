"""`gdsload bench`: what a dataset's samples reach the device with, straight there and by way of RAM.

plan      what is measured, and the machine it is measured on
routes    the contenders: how each opens a loader and gets a batch to the device
check     their bytes against the dataset's, before anything is timed
cache     dropping files from the page cache, filling it, and asking the kernel whether that worked
trial     one timed run
run       all of it, in order
"""

from gdsload.tools.bench.bench_plan import BenchPlan, make_plan
from gdsload.tools.bench.measure import run_bench

__all__ = ["BenchPlan", "make_plan", "run_bench"]
