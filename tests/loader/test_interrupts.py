"""Ctrl-C at chosen places of the library: nothing hangs, nothing is left behind, and what was interrupted can go on."""

from __future__ import annotations

import dis
import functools
import random
import sys
import weakref
from itertools import pairwise
from pathlib import Path

import pytest

import gdsload
from gdsload.testing import SlowBackend

HOUSE = str(Path(gdsload.__file__).parent)
EPOCH = list(range(0, 1000, 10))


@functools.cache
def behind_calls(code):
    """Where Python looks for signals: behind calls, and where a function begins."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "PRECALL")]
    return {after.offset for before, after in pairwise(steps) if before.opname.startswith(("CALL", "RESUME"))}


def callers(frame):
    """The files of the code that has called it."""
    while (frame := frame.f_back) is not None:
        yield frame.f_code.co_filename


def ask_for_opcodes(frame, _event, _):
    frame.f_trace_opcodes = True


def run(use, target=None):
    """Call `use` and strike where the library, in this thread, comes to the target. Gives the places it came to.

    What Python calls when an object goes is left out: it forgets whatever is raised there, and says so.
    """
    seen = {}

    def step(frame, event, _):
        if event == "opcode" and frame.f_lasti in behind_calls(frame.f_code):
            place = (frame.f_code.co_filename, frame.f_code.co_name, frame.f_lasti)
            seen[place] = seen.get(place, 0) + 1
            if target == (place, seen[place]):
                sys.settrace(None)
                raise KeyboardInterrupt
        return step

    def enter(frame, _event, _):
        if not frame.f_code.co_filename.startswith(HOUSE) or weakref.__file__ in callers(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return step

    before = sys.gettrace()
    sys.settrace(ask_for_opcodes)  # Python 3.12 traces them from the next `settrace` on only
    next(callers(sys._getframe()))
    sys.settrace(enter)
    try:
        use()
    finally:
        sys.settrace(before)
    return seen


@pytest.mark.parametrize("mmap", [True, False], ids=["mapped", "unmapped"])
@pytest.mark.parametrize("seed", range(2))
def test_at_any_place(load, plain, wrap, threads, soon, mmap, seed):
    made = wrap(lambda inner: SlowBackend(inner, 0.0005))

    def use():
        for count in (3, 2):  # the first is left half-way
            iterator = iter(loader)
            for number in range(count):
                found.append(next(iterator)["x"][0, 0].item())
                assert found[-1] == 10 * number
        loader.close()

    loader, found = load(plain, 10, mmap=mmap, memory=gdsload.Memory(prefetch=2000)), []
    places = sorted(run(use).items())
    assert len(places) > 200
    chosen = random.Random(seed)
    for place, hits in chosen.sample(places, 15):
        loader, found = load(plain, 10, mmap=mmap, memory=gdsload.Memory(prefetch=2000)), []
        held = []
        try:
            run(use, (place, chosen.randint(1, hits)))
        except KeyboardInterrupt:
            # The iterator that was struck is dropped behind this; `close` waits for pipelines that somebody holds.
            held += loader._life.pipelines
            if not loader._life.closed:
                assert loader.state_dict()["position"] % 10 == 0
                assert [batch["x"][0, 0].item() for batch in loader] == EPOCH
        loader.close()
        soon(lambda: threads() == [])  # what was opened and not yet noted is closed when it is dropped
        assert not any(one.inner.files.opened.any() for one in made), place


@pytest.mark.parametrize("mmap", [True, False], ids=["mapped", "unmapped"])
def test_nothing_can_be_struck_where_things_are_dropped(plain, mmap, threads, soon):
    """Python forgets what is raised there; so no Python code runs, in this thread, that Ctrl-C could strike."""
    entered = []

    def enter(frame, _event, _):
        if frame.f_code.co_filename.startswith(HOUSE) or frame.f_code.co_filename == weakref.__file__:
            entered.append(frame.f_code.co_qualname)

    dataset = gdsload.ShardDataset(plain, mmap=mmap)
    dataset.read_batch([0, 1])
    loader = gdsload.DataLoader(dataset, 10, device="cpu", memory=gdsload.Memory(prefetch=2000))
    through, half_way = iter(loader), iter(loader)
    batches = [next(half_way), *through]
    before = sys.gettrace()
    sys.settrace(enter)
    try:
        del half_way, through
        del batches
        del loader
        del dataset
    finally:
        sys.settrace(before)
    assert entered == []
    soon(lambda: threads() == [])
