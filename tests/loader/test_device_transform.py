"""`device_transform`: ahead of the consumer, one batch at a time, with random numbers that depend on the batch alone."""

import threading
import time

import pytest
import torch

from gdsload import LoaderClosedError, Memory, ReadError
from gdsload.loader.plan import LoaderPlan
from gdsload.order import Purpose, derive_key
from gdsload.testing import Fault, FaultyBackend, fingerprint
from gdsload.transforms import Cast
from tests.loader.taking import begin, noisy_batch, numbers, prints
from tests.pools import Held


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))

    def forward(self, batch, generator):
        return batch["x"] * self.weight * torch.rand(8, generator=generator)


class TestCalls:
    @pytest.mark.parametrize("when", ["read", "completion"])
    def test_a_group_that_is_made_again_is_the_same(self, load, plain, wrap, when):
        wanted = prints(load(plain, 10, device_transform=noisy_batch))
        made = wrap(lambda inner: FaultyBackend(inner, Fault(lambda: ReadError("odd"), calls=[1], when=when, times=1)))
        assert prints(load(plain, 10, device_transform=noisy_batch)) == wanted
        assert made[0].struck

    def test_functions_modules_and_lists(self, load, plain):
        module = Module()
        found = list(load(plain, 500, device_transform=[Cast("x", torch.float64), module]))
        generator = torch.Generator().manual_seed(derive_key(0, 0, Purpose.TRANSFORM, 500))
        x = torch.arange(500, 1000).double()[:, None].expand(500, 8)
        assert torch.equal(found[1], x * torch.ones(8) * torch.rand(8, generator=generator))
        assert not found[1].requires_grad

    def test_the_consumers_modes_do_not_matter(self, load, plain, workers):
        """At times it is the consumer's thread that makes a batch."""
        workers(1)
        layer = torch.nn.Linear(8, 4)

        def project(batch):
            return layer(batch["x"].float())

        loader = load(plain, 10, device_transform=project, memory=Memory(prefetch=1))
        for mode in (torch.enable_grad(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)):
            with mode:
                batches = list(loader)
            assert {batch.dtype for batch in batches} == {torch.float32}
            assert not any(batch.requires_grad or batch.is_inference() for batch in batches)

    def test_one_at_a_time_and_each_batch_once(self, load, plain, workers):
        workers(4)
        inside, seen = [], []

        def watch(batch):
            inside.append(1)
            seen.append(batch["index"].tolist())
            time.sleep(0.001)
            assert len(inside) == 1
            inside.pop()
            return batch

        loader = load(plain, 10, with_index=True, device_transform=watch, memory=Memory(prefetch=1))
        wanted = numbers(loader)
        assert sorted(seen) == wanted

    @pytest.mark.parametrize(
        ("hook", "names"),
        [("device_transform", "gdsload"), ("collate_fn", "gdsload"), ("sample_transform", "gdsload-sample")],
    )
    def test_it_runs_ahead_of_the_consumer_without_gradients(self, load, plain, soon, hook, names):
        """As other hooks do."""
        seen = []

        def note(given):
            time.sleep(0.002)
            seen.append((threading.current_thread().name, torch.is_grad_enabled()))
            return given

        loader = load(plain, 10, **{hook: note})
        _held = begin(loader)
        before = len(seen)
        soon(lambda: len(seen) > before + 10)
        assert all(name.startswith(names) for name, _ in seen[before:])
        assert {grad for _, grad in seen} == {False}

    @pytest.mark.parametrize("result", [None, "text", (torch.ones(2), {"a": [torch.ones(1)]})])
    def test_whatever_it_returns_is_handed_out(self, load, plain, result):
        found = list(load(plain, 250, device_transform=lambda _: result))
        assert prints(found) == [fingerprint(result)] * 4

    def test_where_torch_copies_batches_it_comes_behind_the_copy(self, load, plain, monkeypatch):
        """In the consumer's thread, with the same random numbers and notes."""
        threads = set()

        def fail_late(batch, generator):
            threads.add(threading.current_thread())
            return {**noisy_batch(batch, generator), "rest": 1 / (batch["x"][0, 0] - 500).item()}

        def run():
            return prints(load(plain, 100, "full", device_transform=noisy_batch))

        ahead = run()
        monkeypatch.setattr(LoaderPlan, "copies", True)
        assert run() == ahead
        loader = load(plain, 100, device_transform=fail_late)
        iterator = begin(loader, 5)
        with pytest.raises(ZeroDivisionError) as caught:
            next(iterator)
        assert caught.value.__notes__[-1] == "in device_transform, for the batch of step 5 of epoch 0"
        assert threads == {threading.current_thread()}


class TestErrors:
    @pytest.mark.parametrize(
        ("hook", "ask", "match"),
        [
            ("device_transform", lambda loader: loader.close(), "closed its loader"),
            ("device_transform", lambda loader: next(iter(loader)), "began an epoch of it or set its place"),
            ("device_transform", lambda loader: loader.set_epoch(3), "began an epoch of it or set its place"),
            ("sample_transform", lambda loader: next(iter(loader)), "began an epoch of its loader"),
        ],
    )
    @pytest.mark.parametrize("ahead", [True, False])
    def test_what_waits_for_its_own_loader_is_refused(self, load, plain, hook, ask, match, ahead):
        loader = load(plain, 10, ahead=ahead, **{hook: lambda _: ask(loader)})
        with pytest.raises(RuntimeError, match=match):
            list(loader)

    @pytest.mark.parametrize("ask", ["cache", "state_dict", "stats", "backend", "epoch"])
    def test_it_may_look_at_its_loader_while_an_abandoned_epoch_is_waited_for(self, load, plain, in_thread, ask):
        held = Held()

        def look(batch):
            held()
            found = getattr(loader, ask)
            if callable(found):
                found()
            return batch

        loader = load(plain, 10, device_transform=look)
        abandoned = [iter(loader)]
        first = in_thread(lambda: next(abandoned[0]))
        assert held.begun.wait(10)
        held.may_end.set()
        assert len(first.result(timeout=10)["x"]) == 10
        held.may_end.clear()
        abandoned.clear()
        second = in_thread(list, loader)
        threading.Timer(0.1, held.may_end.set).start()
        assert len(second.result(timeout=10)) == len(loader)

    def test_closing_waits_for_the_call(self, load, plain, in_thread):
        held = Held()
        loader = load(plain, 1, device_transform=lambda batch: held() or batch)
        consumer = in_thread(list, loader)
        assert held.begun.wait(10)
        closer = in_thread(loader.close)
        time.sleep(0.05)
        assert not closer.done()
        held.may_end.set()
        closer.result(timeout=10)
        with pytest.raises(LoaderClosedError, match="was closed"):
            consumer.result(timeout=10)
