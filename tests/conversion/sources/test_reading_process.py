"""The process in which libraries read files that may be damaged."""

import ctypes
import multiprocessing
import os
import threading

import pytest

from gdsload.conversion.spread import read_apart
from gdsload.errors import FormatError


def crash(file):
    ctypes.string_at(1)


def fail(file):
    raise ValueError(f"{os.path.basename(file)} is odd")


def process(file):
    return os.getpid()


def test_it_is_one_process_and_not_this_one(tmp_path):
    found = []
    threads = [threading.Thread(target=lambda: found.append(read_apart(process, "a"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert os.getpid() not in found


def test_a_file_that_ends_it_is_at_fault_and_the_next_one_is_read():
    said = r"a.mat: the process that reads it has died: .*signal 11 \(SIGSEGV\)\. .*damaged"
    with pytest.raises(FormatError, match=said):
        read_apart(crash, "a.mat")
    assert read_apart(os.path.basename, "/tmp/b.mat") == "b.mat"


def test_errors_are_raised_here():
    with pytest.raises(ValueError, match="a.mat is odd"):
        read_apart(fail, "/tmp/a.mat")


def test_a_worker_of_a_conversion_reads_by_itself(monkeypatch):
    monkeypatch.setattr(multiprocessing.current_process(), "name", "gdsload-convert")
    assert read_apart(process, "a") == os.getpid()
