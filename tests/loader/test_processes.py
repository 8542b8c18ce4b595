"""Ctrl-C, the interpreter's end, and forks: whole processes."""

import json
import signal
import subprocess
import sys
import textwrap
import time

import pytest

pytestmark = pytest.mark.slow
# Imports once, and forks a process for each program, one at a time: it runs and ends as one that was started by itself.
NURSERY = """
import atexit, ctypes, gc, json, os, signal, sys, threading, time
atexit.register(lambda: globals().get("at_last", int)())  # after all that gdsload does at the end
import gdsload
from gdsload.backends.host import HostBackend
from gdsload.shards.gather_host import one_thread
from gdsload.testing import SlowBackend

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have what runs in the background ignore it
with one_thread():  # looks for libraries, in a file that Python would complain of if Ctrl-C struck there
    pass

def born(folder, path, mmap, delay):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with the nursery
    for fd, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(os.path.join(folder, name), os.O_CREAT | os.O_WRONLY), fd)
    if delay:
        gdsload.backends.registry.HostBackend = lambda files: SlowBackend(HostBackend(files), delay)
    return gdsload.DataLoader(path, 10, "full", device="cpu", mmap=mmap, memory=gdsload.Memory(prefetch=2000))

def read(folder, name):
    with open(os.path.join(folder, name)) as file:
        return file.read()

def raised(pid, folder, after_s):
    '''See a process through, and give its exit code.'''
    began = time.monotonic()
    if after_s is not None:
        out = folder + "/out"
        while time.monotonic() < began + 20 and not (os.path.exists(out) and os.path.getsize(out)):
            time.sleep(0.001)
        time.sleep(after_s)
        os.kill(pid, signal.SIGINT)
    while not (found := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > began + 20:
            os.kill(pid, signal.SIGABRT)
            found = os.waitpid(pid, 0)
            break
        time.sleep(0.001)
    return os.waitstatus_to_exitcode(found[1])

gc.collect()
gc.freeze()  # what all have imported is not gone through again when each is taken down
program = None
for line in sys.stdin:
    job = json.loads(line)
    os.makedirs(job["folder"])
    if not (pid := os.fork()):
        path, mmap, delay = job["path"], job["mmap"], job["delay"]
        loader = born(job["folder"], path, mmap, delay)
        program = job["program"]
        break
    code = raised(pid, job["folder"], job["after_s"])
    print(json.dumps([code, read(job["folder"], "out"), read(job["folder"], "err")]), flush=True)
if program is not None:
    exec(program)
"""
WAYS = [(True, 0), (False, 0), (True, 0.01), (False, 0.01)]


@pytest.fixture(scope="module")
def nursery():
    options = ["-X", "faulthandler", "-W", "error", "-W", "ignore:This process:DeprecationWarning"]
    with subprocess.Popen(
        [sys.executable, *options, "-c", NURSERY],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        yield process
        process.stdin.close()
        assert process.wait(30) == 0


@pytest.fixture
def run(plain, tmp_path, nursery):
    """Runs programs, each in a process of its own with a loader in it: gives their exit codes, outputs and errors.

    Each is (program, (mmap, delay of reads in seconds), seconds after which it gets SIGINT, or None).
    """

    def start(programs):
        found = []
        for number, (program, (mmap, delay), after_s) in enumerate(programs):
            job = {"program": textwrap.dedent(program), "folder": str(tmp_path / f"process {number}")}
            job.update(path=str(plain), mmap=mmap, delay=delay, after_s=after_s)
            nursery.stdin.write(json.dumps(job) + "\n")
            nursery.stdin.flush()
            found.append(json.loads(nursery.stdout.readline()))
        return found

    return start


QUIET_ENDS = {
    "a live iterator": "it = iter(loader); next(it)",
    "a live iterator in a circle": "it = iter(loader); next(it); all = [it]; all.append(all); del it, loader, all",
    "several live iterators": "its = [iter(loader) for _ in range(3)]; [next(it) for it in its]",
    "a loader that was not begun": "it = iter(loader)",
    "sys.exit inside the loop": "for batch in loader:\n    sys.exit(0)",
    "batches that outlive all": "batches = [batch for batch, _ in zip(loader, range(30))]",
    "a loader that imports no compiler": "list(loader); assert 'torch._dynamo' not in sys.modules",
}


def test_the_interpreter_ends_quietly_with_loaders_in_any_state(run):
    # torch takes 0.7 s to come down, so the four ways are shared out.
    found = run([(program, WAYS[number % 4], None) for number, program in enumerate(QUIET_ENDS.values())])
    assert {name: result for name, result in zip(QUIET_ENDS, found, strict=True) if result != [0, "", ""]} == {}


def test_what_a_dropped_epoch_has_left_is_gone_before_the_interpreter_is_taken_down(run):
    """A thread that is still destroying batches then wants the interpreter lock inside of torch: the process aborts."""
    program = """
        alive = set()

        class Batch:
            def __init__(self, batch):
                alive.add(id(self))
                self.batch = batch

            def __del__(self, sleep=time.sleep, alive=alive):  # the last one goes when modules are gone
                sleep(0.005)
                alive.discard(id(self))

        def at_last():
            os.write(1, b"%d left" % len(alive))

        other = gdsload.DataLoader(path, 4, device="cpu", mmap=mmap, device_transform=Batch)
        for batch in other:
            while len(alive) < 100:
                time.sleep(0.001)
            END
        del batch
    """
    ends = {"break": True, "del other; break": False, "sys.exit(0)": True}
    found = run([(program.replace("END", end), (mmap, 0), None) for end, mmap in ends.items()])
    # With `sys.exit` inside the loop, the variable still has its batch.
    assert [result for result in found if result not in ([0, "0 left", ""], [0, "1 left", ""])] == []


def test_the_interpreter_ends_while_a_daemon_thread_iterates(run):
    """Python stops such a thread wherever it is. It may say that nothing can be read any more; it must not crash."""
    program = """
        def consume():
            while True:
                for batch in loader:
                    time.sleep(0.0001)

        threading.Thread(target=consume, daemon=True).start()
        time.sleep(0.05)
    """
    for code, out, err in run([(program, way, None) for way in WAYS[1:3]]):
        assert (code, out) == (0, ""), err
        assert "Fatal" not in err


def test_ctrl_c_at_any_moment_ends_the_program(run):
    program = """
        def own():
            return [thread.name for thread in threading.enumerate() if thread.name.startswith("gdsload")]
        try:
            os.write(1, b"ready\\n")  # the signal may strike before this returns
            while True:
                for batch in loader:
                    assert batch["x"][:, 0].tolist() == batch["x"][:, -1].tolist()
        except KeyboardInterrupt:
            state = loader.state_dict()
            assert state["position"] % 10 == 0
            loader.close()
            end = time.monotonic() + 5
            while own() and time.monotonic() < end:
                time.sleep(0.01)
            print("interrupted", own(), flush=True)
            os._exit(0)
    """
    for result in run([(program, way, 0.002 * number**2) for way in WAYS for number in range(7)]):
        code, out, err = result
        assert (code, out) == (0, "ready\ninterrupted []\n"), err
        assert err == ""


def test_ctrl_c_that_nobody_catches(run):
    program = "print('ready', flush=True)\nwhile True:\n    for batch in loader:\n        time.sleep(0.001)"
    for code, _, err in run([(program, WAYS[0], 0.02)]):
        assert code == -signal.SIGINT
        assert err.rstrip().endswith("KeyboardInterrupt")


def test_reads_that_hang_for_good_do_not_keep_the_program(run):
    """Ctrl-C waits for none of them, and the end waits a little for all."""
    program = """
        def hanging(*arguments):
            while hang:
                os.write(1, b" hangs")
                time.sleep(3600)
            return read(*arguments)

        hang, reads = [], gdsload.shards.prepared_reads.PreparedReads
        read, reads.read = reads.read, hanging
        loaders = [gdsload.DataLoader(path, 10, device="cpu", mmap=mmap, memory=gdsload.Memory(prefetch=1)) for _ in range(3)]
        others = [iter(one) for one in loaders]
        for number, batch in enumerate(loader):
            [next(other) for other in others[: 3 - number]]
            if number == 3:
                hang.append(True)
                os.write(1, b"ready")
    """
    began = time.monotonic()
    for code, out, err in run([(program, WAYS[1], 0.3)]):
        assert code == -signal.SIGINT, err
        assert "ready" in out
        assert "hangs" in out
    assert time.monotonic() - began < 12


def test_a_fork_in_the_middle_leaves_both_processes_well(run):
    """The child may not use loader and iterators, but drop and close them; what it does to batches is its own."""
    program = """
        import gc
        import torch
        it = iter(loader)
        batch = next(it)
        before = batch["x"].clone()
        child = os.fork()
        if not child:
            found = []
            for use in (lambda: iter(loader), lambda: next(it), lambda: next(it)):
                try:
                    use()
                    found.append("worked")
                except gdsload.LoaderClosedError as error:
                    assert "used in another process" in str(error) and "fork before the first batch" in str(error)
                    found.append("refused")
            assert found == ["refused"] * 3, found
            loader.close()
            batch["x"].fill_(-1)
            del it, loader
            gc.collect()
            again = gdsload.DataLoader(path, 10, device="cpu", mmap=mmap)
            assert len(list(again)) == 100
            sys.exit(0)   # by way of everything that is done at exit
        assert os.waitpid(child, 0)[1] == 0
        assert torch.equal(batch["x"], before)
        assert len(list(it)) == 99
        assert len(list(loader)) == 100
    """
    assert run([(program, WAYS[3], None)]) == [[0, "", ""]]
