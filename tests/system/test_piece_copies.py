"""Many pieces by one call: the bytes that a loop copies, or word that they are not."""

import ctypes
import mmap
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gdsload.system import piece_copies
from gdsload.system.memory import address_of
from gdsload.system.piece_copies import concatenate, usable

SOURCE = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8)
MARGIN = 64
PAGE = mmap.PAGESIZE
NEEDS_THE_CALL = pytest.mark.skipif(not usable(), reason="the system or a sandbox has no process_vm_readv")


def copied(addresses, nbytes):
    """Return whether they were copied, and to what; nothing around it is touched."""
    total = int(nbytes.sum())
    room = np.full(total + 2 * MARGIN, 0xA5, np.uint8)
    done = concatenate(addresses, nbytes, address_of(room) + MARGIN)
    assert (room[:MARGIN] == 0xA5).all()
    assert (room[MARGIN + total :] == 0xA5).all()
    return done, room[MARGIN : MARGIN + total].tobytes()


def pieces(offsets, lengths):
    wanted = b"".join(SOURCE[low : low + length].tobytes() for low, length in zip(offsets, lengths, strict=True))
    return address_of(SOURCE) + np.array(offsets, np.int64), np.array(lengths, np.int64), wanted


@NEEDS_THE_CALL
@settings(derandomize=True, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 1 << 19), st.integers(0, 10_000)), max_size=30))
@example([])
@example([(0, 0)])
@example([(5, 0), (PAGE - 1, 2), (0, 3 * PAGE), (7, 0)])
def test_they_are_what_a_loop_copies(found):
    addresses, nbytes, wanted = pieces(*zip(*found, strict=True)) if found else pieces([], [])
    assert copied(addresses, nbytes) == (True, wanted)


@NEEDS_THE_CALL
@pytest.mark.parametrize("count", [1023, 1024, 1025, 5000])
def test_however_many_they_are(count):
    rng = np.random.default_rng(count)
    addresses, nbytes, wanted = pieces(rng.integers(0, 1 << 19, count).tolist(), rng.integers(0, 200, count).tolist())
    assert copied(addresses, nbytes) == (True, wanted)


@pytest.mark.parametrize("at", [0, 1023, 1024, 1500])
def test_memory_that_cannot_be_read_is_told_and_ends_nothing(at):
    hidden = mmap.mmap(-1, PAGE)
    address = address_of(np.frombuffer(hidden, np.uint8))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), 0) == 0
    addresses, nbytes, _ = pieces([100] * 1501, [10] * 1501)
    addresses[at] = address
    done, _ = copied(addresses, nbytes)
    assert not done


@NEEDS_THE_CALL
def test_nor_does_a_file_that_was_cut(tmp_path):
    """A file whose mapping ends a process that looks at it with SIGBUS."""
    path = tmp_path / "file"
    path.write_bytes(SOURCE[: 4 * PAGE].tobytes())
    with open(path, "r+b") as file:
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.uint8)
        starts, nbytes = address_of(mapped) + np.array([0, 2 * PAGE - 5, 3 * PAGE]), np.array([10, 20, 30])
        wanted = [mapped[low : low + count].tobytes() for low, count in ((0, 10), (2 * PAGE - 5, 20), (3 * PAGE, 30))]
        assert copied(starts, nbytes) == (True, b"".join(wanted))
        file.truncate(PAGE)
        assert not copied(starts, nbytes)[0]
        assert copied(starts[:1], nbytes[:1]) == (True, wanted[0])


@pytest.mark.parametrize(
    "call", [None, lambda *_: -1, lambda *_: 0, lambda *_: 29], ids=["no call", "refused", "nothing", "a part"]
)
def test_what_the_system_refuses_or_does_in_part_is_told(monkeypatch, call):
    monkeypatch.setattr(piece_copies, "_vector_copy", lambda: call)
    addresses, nbytes, _ = pieces([0, 50, 100], [10, 10, 10])
    assert copied(addresses, nbytes) == (False, b"\xa5" * 30)
    assert not usable.__wrapped__()


@NEEDS_THE_CALL
def test_from_a_thread_when_the_first_one_has_ended():
    """In a forked process, whose first thread waits for nobody."""

    def last():
        while Path(f"/proc/self/task/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            pass
        addresses, nbytes, wanted = pieces([50, 10], [3, 4])
        os._exit(copied(addresses, nbytes) != (True, wanted))

    child = os.fork()
    if not child:
        signal.alarm(20)
        threading.Thread(target=last).start()
        ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 1)  # exit, of this thread alone
    assert os.waitpid(child, 0)[1] == 0


@NEEDS_THE_CALL
def test_a_forked_process_copies_its_own_memory(ends_in_a_child):
    memory = np.zeros(100, np.uint8)
    addresses, nbytes = address_of(memory) + np.array([10, 50]), np.array([5, 5])
    assert copied(addresses, nbytes) == (True, bytes(10))

    def child():
        memory[:] = 7
        os._exit(0 if copied(addresses, nbytes) == (True, b"\x07" * 10) else 1)

    assert ends_in_a_child(child)
    assert copied(addresses, nbytes) == (True, bytes(10))
