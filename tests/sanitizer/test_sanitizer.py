"""The command's reading of a sanitizer's output, and the memory that it allows."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.sanitizer.__main__ import build, found_in, kernels

PASSED = "........ [100%]\n8 passed in 15.21s\n"


@pytest.mark.parametrize(("text", "finished", "errors", "done"), [
    (f"========= COMPUTE-SANITIZER\n{PASSED}========= ERROR SUMMARY: 0 errors\n", True, 0, True),
    (f"{PASSED}========= ERROR SUMMARY: 3 errors\n", True, 3, True),
    ("1 failed, 10 passed in 94.79s (0:01:34)\n========= ERROR SUMMARY: 24 errors were not printed. Use", True, 24, True),
    (f"{PASSED}========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)\n", True, 2, True),
    ("Fatal Python error: Aborted\n========= ERROR SUMMARY: 1 error\n", True, 1, False),
    (PASSED, False, 0, False),
])  # fmt: skip
def test_what_was_found(text, finished, errors, done):
    found = found_in(text, finished)
    assert (found["errors"], found["finished"]) == (errors, done)


def test_all_kernels_are_named():
    assert {"gather", "checksums", "transform", "ids"} <= set(kernels())


FAKE = """
#include <stddef.h>
int cudaMalloc(void **address, size_t size) { *address = (void *)size; return 0; }
"""
PROGRAM = """
import ctypes
for size in (0, 1, 16, 34307):
    address = ctypes.c_void_p()
    assert ctypes.CDLL(None).cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size)) == 0
    print(address.value or 0)
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
def test_memory_is_asked_for_in_whole_words(tmp_path):
    (tmp_path / "cuda.c").write_text(FAKE)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "cuda.so", tmp_path / "cuda.c"], check=True)
    preloaded = {**os.environ, "LD_PRELOAD": f"{build(tmp_path)}:{tmp_path / 'cuda.so'}"}
    ran = subprocess.run([sys.executable, "-c", PROGRAM], env=preloaded, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["0", "16", "16", "34320"]
