"""`ahead=False`: the thread that asks for a batch makes it, and nothing is made ahead."""

import io
import pdb  # noqa: T100 - what is tested
import threading

import pytest
import torch

from gdsload.testing import assert_resumes_everywhere
from tests.loader.taking import noisy_sample, prints


def test_batches_are_those_that_are_made_ahead(load, plain, order):
    """With transforms that draw, too: `test_random_numbers.py`."""
    ahead, one = load(plain, 10, **order), load(plain, 10, ahead=False, **order)
    for _ in range(2):
        assert prints(one) == prints(ahead)


def test_it_resumes_at_every_step(load, plain, order):
    assert_resumes_everywhere(
        lambda: load(plain, 100, ahead=False, sample_transform=noisy_sample, with_index=True, **order)
    )


def test_one_batch_at_a_time_in_the_thread_that_asks(load, plain, threads):
    here, calls = threading.get_ident(), []

    def note(name):
        def transform(value):
            calls.append((name, threading.get_ident()))
            return value

        return transform

    names = ("sample_transform", "device_transform", "transform")
    loader = load(plain, 10, ahead=False, **{name: note(name) for name in names})
    batches = iter(loader)
    for _ in range(5):
        next(batches)
        assert calls == [(name, here) for name, count in zip(names, (10, 1, 1), strict=True) for _ in range(count)]
        assert not threads()
        calls.clear()


@pytest.mark.parametrize("where", ["sample_transform", "device_transform", "transform"])
def test_a_debugger_stops_in_every_transform(load, plain, where):
    shown = io.StringIO()

    def stop(value):
        typed = io.StringIO("p 'first is', int(value['x'].flatten()[0])\nc\n")
        pdb.Pdb(stdin=typed, stdout=shown, nosigint=True).set_trace()  # Ctrl-C stays pytest's
        return value

    batches = iter(load(plain, 1, ahead=False, **{where: stop}))
    for step in range(3):
        next(batches)
        assert shown.getvalue().count("'first is'") == step + 1
        assert f"('first is', {step})" in shown.getvalue()


def test_torch_keeps_its_threads(load, plain):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        next(iter(load(plain, 10, ahead=False, sample_transform=dict)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("where", ["sample_transform", "device_transform"])
def test_a_transform_that_asks_its_own_epoch_for_a_batch_is_refused_and_no_hang(load, plain, where):
    asked = []

    def ask(value):
        if not asked:
            asked.append(1)
            next(batches)
        return value

    batches = iter(load(plain, 10, ahead=False, **{where: ask}))
    with pytest.raises(RuntimeError, match="a transform asked for a batch of the epoch that it makes one of"):
        next(batches)
    assert len(list(batches)) == 99
