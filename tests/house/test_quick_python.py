"""A Python that has torch at hand is one: arguments, folder, streams, exit code, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

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
