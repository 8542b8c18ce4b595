"""Programs of several ranks, as a launcher starts them; torch is imported once for all ranks of a program."""

import os
import signal
import subprocess
import sys

import pytest

FORKED = """
import gc, os, sys
import gdsload.loader.loader, torch.distributed

gc.freeze()
ranks = []
for rank in range(int(os.environ["WORLD_SIZE"])):
    if not (pid := os.fork()):
        os.environ["RANK"] = str(rank)
        break
    ranks.append(pid)
else:
    ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    sys.exit(f"exit codes of the ranks: {ends}" if any(ends) else 0)
"""


@pytest.fixture(scope="session")
def run_ranks():
    """Run a program in so many processes with RANK and WORLD_SIZE set; gives what all of them have printed.

    Groups meet at files whose names the program is given: at a port, a second group may find the store of the first.
    """

    def run(program, world_size, *arguments):
        environment = {**os.environ, "WORLD_SIZE": str(world_size), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-c", FORKED + program, *map(str, arguments)], env=environment, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            said, complaint = process.communicate(timeout=50)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        assert process.returncode == 0, complaint
        return said

    return run
