"""A Python that has torch at hand: each of its programs runs in a process forked off one that has imported torch.

Importing it takes more than a second, longer than most of what tests have a process do. What such a process is: an
interpreter that has imported torch and numpy, nothing of gdsload, and runs the program as `__main__`, with the
arguments, environment, folder, descriptors and signal mask that its starter gave. It is no child of its starter: who is
killed is a small process in between, and the program's whole session with it. Tests of how processes are started, end,
or are ended use `sys.executable` as it is.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

CLIENT = r"""#!{python} -IS
import os, sys
argv = sys.argv[1:]
if not argv or argv[0] not in ("-P", "-c", "-m") and argv[0].startswith("-"):
    os.execv({python!r}, [{python!r}, *argv])
import json, signal, socket
fds = []
for fd in map(int, os.listdir("/proc/self/fd")):
    try:
        if os.get_inheritable(fd):
            fds.append(fd)
    except OSError:  # what has listed them
        pass
job = dict(argv=argv, environ=dict(os.environ), folder=os.getcwd(), fds=fds, parent=os.getppid(), python=sys.argv[0])
job["mask"] = [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])]
server = socket.socket(socket.AF_UNIX)
server.connect({place!r})
payload = json.dumps(job).encode()
socket.send_fds(server, [len(payload).to_bytes(8, "little")], fds)
server.sendall(payload)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: server.send(bytes([number])))
for fd in fds:
    os.close(fd)
code = int(server.recv(64))
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
    os.kill(os.getpid(), -code)
os._exit(code)
"""

SERVER = r"""
import ctypes, fcntl, gc, importlib, io, json, os, random, runpy, selectors, signal, socket, sys, tempfile, types
import numpy, torch, torch.distributed, torch.utils.data

place, own_paths = sys.argv[1], set(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
base_path = [path for path in sys.path[1:] if path not in own_paths]
listener = socket.socket(socket.AF_UNIX)
listener.bind(place)
listener.listen(64)
chosen = selectors.DefaultSelector()
chosen.register(listener, selectors.EVENT_READ)
chosen.register(0, selectors.EVENT_READ)
gc.collect()
gc.freeze()
print("ready", flush=True)


class Job:
    "A process, and who started it."

    def __init__(self, client, pid):
        self.client, self.pid, self.ended, self.over = client, pid, os.pidfd_open(pid), False
        chosen.register(client, selectors.EVENT_READ, self)
        chosen.register(self.ended, selectors.EVENT_READ, self)

    def close(self):
        "Wait for its end, and tell whoever started it."
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.over = True
        chosen.unregister(self.client)
        chosen.unregister(self.ended)
        try:
            self.client.send(str(code).encode())
        except OSError:
            pass
        self.client.close()
        os.close(self.ended)

    def kill(self):
        for kill in (os.kill, os.killpg):  # it may have no session of its own yet
            try:
                kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def received(client, fds):
    client.settimeout(10)  # all others wait meanwhile
    head, given, _, _ = socket.recv_fds(client, 8, 250)
    fds += given
    payload, length = b"", int.from_bytes(head, "little")
    while len(head) < 8 or len(payload) < length:
        if not (part := client.recv(length - len(payload))):
            raise EOFError
        payload += part
    client.settimeout(None)
    return json.loads(payload)


def become(job, fds):
    "What the starter of a process gives it, in the child."
    os.setsid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with the server
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 500) for fd in fds]
    os.closerange(0, 500)
    for fd, wanted in zip(high, job["fds"]):
        os.dup2(fd, wanted)
        os.close(fd)
    for fd in {0, 1, 2} - set(job["fds"]):
        os.open(os.devnull, os.O_RDWR)
    for name, fd in (("stdout", 1), ("stderr", 2)):
        made = open(fd, "w", encoding="utf-8", errors="backslashreplace" if fd == 2 else "strict", closefd=False)
        made.reconfigure(line_buffering=fd == 2 or os.isatty(fd), write_through=bool(job["environ"].get("PYTHONUNBUFFERED")))
        setattr(sys, name, made)
        setattr(sys, f"__{name}__", made)
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environ"])
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    os.getppid, sys.executable = lambda: job["parent"], job["python"]
    tempfile.tempdir = None
    random.seed()
    numpy.random.seed()
    importlib.invalidate_caches()
    signal.pthread_sigmask(signal.SIG_SETMASK, job["mask"])
    signal.signal(signal.SIGINT, signal.default_int_handler)


def begun(client):
    "Has the process of a job begin; in the child, gives what it runs."
    fds = []
    try:
        job = received(client, fds)
    except (EOFError, OSError):  # who started it was ended meanwhile
        client.close()
        for fd in fds:
            os.close(fd)
        return None
    if pid := os.fork():
        for fd in fds:
            os.close(fd)
        Job(client, pid)
        return None
    client.detach()  # or its number would be closed here, which one of the job's has perhaps
    become(job, fds)
    return job["argv"]


argv = None
while argv is None:
    # Each event with the job that it was of: descriptors have the numbers of others that were closed.
    for key, _ in chosen.select():
        job = key.data
        if key.fileobj == 0:  # the tests are over
            for other in {one.data for one in chosen.get_map().values()} - {None}:
                other.kill()
            os._exit(0)
        if job is None:
            if (argv := begun(listener.accept()[0])) is not None:
                break
        elif job.over:
            continue
        elif key.fileobj is job.client and (numbers := job.client.recv(1)):
            os.kill(job.pid, numbers[0])
        else:
            if key.fileobj is job.client:
                job.kill()
            job.close()

safe = argv[0] == "-P"
argv = argv[safe:]
paths = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))) + base_path
first = {"-c": "", "-m": os.getcwd()}.get(argv[0], os.path.dirname(os.path.abspath(argv[0])))
sys.path[:] = paths if safe else [first, *paths]
if argv[0] == "-c":
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    sys.argv[:] = ["-c", *argv[2:]]
    exec(compile(argv[1], "<string>", "exec"), main.__dict__)
elif argv[0] == "-m":
    sys.argv[:] = argv[1:]
    runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
else:
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = argv[0]
    sys.argv[:] = argv
    with open(argv[0], encoding="utf-8") as file:
        code = compile(file.read(), argv[0], "exec")
    exec(code, main.__dict__)
"""


@pytest.fixture(scope="session")
def torch_server(tmp_path_factory):
    """The path of an interpreter that has torch at hand."""
    folder = tmp_path_factory.mktemp("quick")
    program = folder / "python"
    program.write_text(CLIENT.format(python=sys.executable, place=str(folder / "socket")))
    program.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(folder / "socket")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=True,
    ) as server:  # fmt: skip
        try:
            assert server.stdout.readline() == b"ready\n"
            yield str(program)
            server.stdin.close()
            server.wait(20)
        finally:
            server.kill()


@pytest.fixture
def quick_python(torch_server, monkeypatch):
    """What a test starts as `sys.executable` has torch at hand."""
    monkeypatch.setattr(sys, "executable", torch_server)


@pytest.fixture(scope="module")
def quick_python_in_module(torch_server):
    """What all tests and fixtures of a module start as `sys.executable` has torch at hand."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", torch_server)
        yield
