"""A process that is forked beside loaders on a GPU, as torch's workers are: it frees nothing of CUDA's, and lives."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.cuda
PROGRAM = """
import gc, os, sys
import gdsload

def left_behind(end):
    loader = gdsload.DataLoader(path, 64, "full", device="cuda", backend=backend)
    batches = iter(loader)
    next(batches)
    if end == "closed":
        loader.close()
    elif end == "garbage":
        circle = [loader, batches]
        circle.append(circle)
    elif end == "held":
        held.append((loader, batches))

gc.disable()  # what is garbage at the fork is garbage in the child
path, backend = sys.argv[1:]
held, failed = [], []
for end in ("dropped", "closed", "garbage", "held"):
    left_behind(end)
    if not (child := os.fork()):
        gc.collect()
        os._exit(0)
    if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        failed.append((end, code))
for loader, batches in held:
    assert len(next(batches)["x"]) == 64
assert not failed, failed
"""


@pytest.mark.parametrize("backend", ["bounce", "mapped", "host"])
def test_a_forked_process_frees_nothing_of_cuda(numbered, backend):
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(numbered), backend],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
