"""Writers that kill themselves at a step by which they change the disk.

Each is a fork of a process that has what a writer needs and no more: one that has torch costs ten times as much to
fork. That process gets what to write as lines of JSON, and says for each how its writer has ended.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

from gdsload.shards import publish as publish_module
from tests.shards.small_dataset import write_small

STEPS = [
    (os, "open"), (os, "pwrite"), (os, "ftruncate"), (os, "fsync"), (os, "mkdir"), (os, "rename"), (os, "unlink"),
    (os, "rmdir"), (os, "symlink"), (fcntl, "flock"), (publish_module, "renameat2"),
]  # fmt: skip


def call_hooks(put, hook):
    """Call `hook(name)` before and after each step by which a writer changes the disk; ``put`` is setattr."""
    for module, name in STEPS:
        real = getattr(module, name)

        def stepped(*args, real=real, name=name, **options):
            hook(f"before {name}")
            if name == "pwrite" and len(args[1]) > 1:
                # A write may end anywhere.
                half = len(args[1]) // 2
                real(args[0], args[1][:half], args[2])
                hook("amid pwrite")
            result = real(*args, **options)
            if name in ("renameat2", "mkdir", "unlink", "open", "flock", "symlink"):
                hook(f"after {name}")  # after the others comes only the next step
            return result

        put(module, name, stepped)


def die_at(step):
    """Make this process kill itself at a step of its next writer."""
    left = [step]

    def hook(_name):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    call_hooks(setattr, hook)


def serve():
    os.fsync = lambda fd: None  # as the tests' own
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if not child:
            code = 70
            try:
                die_at(job.pop("step"))
                write_small(**job)
                code = 0
            finally:
                os._exit(code)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


@contextmanager
def killed_writers():
    """Write the small dataset until a step: how it ended, as `subprocess` says it."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.shards.killed_writers"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip

        def write(path, step, **options):
            print(json.dumps({"path": str(path), "step": step, **options}, default=str), file=server.stdin, flush=True)
            return int(server.stdout.readline())

        yield write
        server.stdin.close()


if __name__ == "__main__":
    serve()
