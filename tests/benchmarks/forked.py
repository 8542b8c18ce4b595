"""Processes of contenders, forked from one that has imported torch and gdsload: that takes longer than what they do."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FORKS = """
import gc, json, os, runpy, signal, socket, sys, tempfile
import numpy, torch
from gdsload import DataLoader, ShardWriter

asking = socket.socket(fileno=int(sys.argv[1]))
gc.freeze()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process that has ended is waited for
while True:
    order, fds, *_ = socket.recv_fds(asking, 2**20, 3)
    if not order:
        sys.exit()
    if pid := os.fork():
        asking.send(str(pid).encode())
        for fd in fds:
            os.close(fd)
        continue
    asking.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    order = json.loads(order)
    os.setsid()
    os.chdir(order["cwd"])
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(order["env"])
    tempfile.tempdir = None
    if order["cwd"] != sys.argv[2]:  # it has a gdsload of its own
        for name in [name for name in sys.modules if name.partition(".")[0] == "gdsload"]:
            del sys.modules[name]
    sys.path[:] = [order["cwd"], *order["env"]["PYTHONPATH"].split(os.pathsep), *sys.path[1:]]
    sys.argv[1:] = []
    runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
    sys.exit()
"""


class ForkingProcess:
    """The process that others are forked from."""

    def __init__(self):
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._asking, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-c", FORKS, str(theirs.fileno()), str(ROOT)]
            self._process = subprocess.Popen(command, cwd=ROOT, env=environment, pass_fds=[theirs.fileno()])

    def fork(self, command, *, cwd, stdin, stdout, stderr, start_new_session, env):
        """What `subprocess.Popen` does with ``python -m MODULE``."""
        assert command[:2] == [sys.executable, "-m"]
        assert stdin == stdout == subprocess.PIPE
        assert start_new_session
        (orders, stdin), (stdout, answers) = os.pipe(), os.pipe()
        order = {"module": command[2], "cwd": str(cwd), "env": env}
        socket.send_fds(self._asking, [json.dumps(order).encode()], [orders, answers, stderr.fileno()])
        os.close(orders)
        os.close(answers)
        return Forked(int(self._asking.recv(100)), os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"))

    def close(self):
        self._asking.close()
        self._process.wait()


class Forked:
    """As much of a `subprocess.Popen` as `benchmarks.processes` uses."""

    def __init__(self, pid, stdin, stdout):
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        try:
            self._process = os.pidfd_open(pid)
        except ProcessLookupError:
            self._process = None

    def wait(self, timeout=None):
        if self._process is None:
            return
        if not select.select([self._process], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("a forked process", timeout)
        os.close(self._process)
        self._process = None
