"""A Python that has torch at hand is one: arguments, folder, streams, exit code, signals."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

TOLD = (
    "import os, sys; print(sys.argv, os.getcwd(), os.environ['A'], input()); print('no', file=sys.stderr); sys.exit(3)"
)
WAITS = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"


def run(*arguments, **options):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, **options)


def test_a_program_has_what_its_starter_gives(quick_python, tmp_path):
    ended = run("-c", TOLD, "a", "b", cwd=tmp_path, env={**os.environ, "A": "ä"}, input="said\n")
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, f"['-c', 'a', 'b'] {tmp_path} ä said\n", "no\n")
    assert run("-m", "gdsload", "--version").returncode == 0
    (tmp_path / "script.py").write_text("print(__name__, __file__, __import__('sys').path[0])")
    assert run(tmp_path / "script.py").stdout == f"__main__ {tmp_path}/script.py {tmp_path}\n"


def test_it_has_imported_torch_and_nothing_of_ours(quick_python):
    found = run("-c", "import sys; print('torch' in sys.modules, 'gdsload' in sys.modules, __name__)")
    assert (found.stdout, found.stderr) == ("True False __main__\n", "")


def test_an_error_is_told(quick_python):
    ended = run("-c", "raise ValueError('so')")
    assert ended.returncode == 1
    assert ended.stderr.endswith("ValueError: so\n")


def test_descriptors_are_handed_on(quick_python):
    ours, theirs = os.pipe()
    assert run("-c", f"import os; os.write({theirs}, b'here')", pass_fds=[theirs]).returncode == 0
    os.close(theirs)
    assert os.read(ours, 9) == b"here"
    os.close(ours)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_it(quick_python, number):
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        process.send_signal(number)
        assert process.wait(20) == -number
        assert process.stdout.read() == ""  # which ends with the last process that has it
    with pytest.raises(ProcessLookupError, match="No such process"):
        while True:  # it is waited for by its own parent
            os.kill(pid, 0)


def raw(place, *argv, fds=()):
    """Who asks for a program as the interpreter does, and is held up at will."""
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(place))
    job = {
        "argv": argv,
        "environ": dict(os.environ),
        "folder": "/",
        "fds": [*fds],
        "parent": 1,
        "python": "x",
        "mask": [],
    }
    payload = json.dumps(job).encode()
    return client, len(payload).to_bytes(8, "little"), payload


@pytest.fixture
def place(torch_server, quick_python):
    """Where the server listens. Afterwards, it still does."""
    yield Path(torch_server).with_name("socket")
    assert run("-c", "print(1)", timeout=20).stdout == "1\n"


def test_descriptors_of_all_numbers_are_handed_on(place):
    """Those that the server's own have, too."""
    numbers, program = range(3, 40), "import os\nfor fd in range(3, 40): os.write(fd, bytes([fd]))"
    ours, theirs = os.pipe()
    client, head, payload = raw(place, "-c", program, fds=numbers)
    socket.send_fds(client, [head], [theirs] * len(numbers))
    client.sendall(payload)
    client.settimeout(20)
    assert client.recv(64) == b"0"
    assert os.read(ours, 99) == bytes(numbers)
    for fd in (ours, theirs):
        os.close(fd)
    client.close()


@pytest.mark.parametrize("sent", [0, 1, 8, 9, 30])
def test_who_is_ended_while_asking_holds_nobody_up(place, sent):
    """Nor are descriptors kept that it has handed over, at whose other ends somebody may wait."""
    client, head, payload = raw(place, "-c", "pass")
    ours, theirs = os.pipe()
    if sent:
        socket.send_fds(client, [(head + payload)[:sent]], [theirs])
    os.close(theirs)
    client.close()
    assert select.select([ours], [], [], 20)[0]
    assert os.read(ours, 1) == b""
    os.close(ours)


def test_a_signal_that_strikes_while_it_asks_ends_it(place):
    """With much to say, which takes a while."""
    environment = {**os.environ, **{f"X{number}": "x" * 1000 for number in range(100)}}
    for number in range(40):
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=environment)
        time.sleep(0.02 + 0.001 * number)
        process.terminate()
        assert process.wait(20) == -signal.SIGTERM


def test_who_is_ended_right_after_asking_holds_nobody_up(place):
    for _ in range(30):
        client, head, payload = raw(place, "-c", "import time; time.sleep(60)")
        client.sendall(head + payload)
        client.close()


def test_an_event_of_a_job_that_is_over_is_not_taken_for_one_of_the_next(place, tmp_path):
    """The next one's descriptors have the same numbers, and the server would wait for its end."""
    note = tmp_path / "note"
    program = f"import os, time; open({str(note)!r}, 'w').write(open('/proc/self/stat').read()); time.sleep(60)"
    first, head, payload = raw(place, "-c", program)
    first.sendall(head + payload)
    until = time.monotonic() + 20
    while not (note.exists() and note.read_text()) and time.monotonic() < until:
        time.sleep(0.01)
    pid, _, _, server = note.read_text().split()[:4]
    os.kill(int(server), signal.SIGSTOP)
    try:
        time.sleep(0.2)  # until it has stopped
        first.close()
        second, head, payload = raw(place, "-c", "import time; time.sleep(60)")
        second.sendall(head + payload)
        os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.2)
    finally:
        os.kill(int(server), signal.SIGCONT)
    third, head, payload = raw(place, "-c", "pass")
    third.sendall(head + payload)
    third.settimeout(20)
    assert third.recv(64) == b"0"
    for client in (second, third):
        client.close()
