"""A simulated training: every batch of all its ranks is compared with the formula of its dataset."""

from __future__ import annotations

import faulthandler
import json
import time
from collections import Counter
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from gdsload import DataLoader, LoaderClosedError, OptionError, ShardDataset, Windows
from gdsload.order import Order, Schedule, make_order
from tests.order.quality import batch_ids
from tests.soak.drawn import draw_options, draw_way
from tests.soak.formula import KINDS, differences


def watch(seconds: int = 180) -> None:
    """End the process with the stacks of its threads unless this is called again within some seconds.

    Of processes that share a GPU, some have waited 10 s for nvJPEG to open a decoder, and each loader opens two.
    """
    faulthandler.dump_traceback_later(seconds, exit=True)


class Training:
    """A training that follows from a seed.

    Attributes:
        counts: what has been done.
    """

    def __init__(self, seed: int, folder: Path, device: torch.device, backends: list[Any]) -> None:
        self._random = random = Random(seed)
        self._device, self._backends = device, backends
        self.counts: Counter[str] = Counter()
        self._name = random.choice([name for name in KINDS if (folder / name).exists()])
        dataset: Any = ShardDataset(folder / self._name)
        ends = np.cumsum([shard.samples for shard in dataset.shards])
        self._sample_bytes = sum(shard.bytes for shard in dataset.shards) // len(dataset)  # as they are stored
        self._starts, self._length = np.arange(len(dataset)), 0
        if self._name == "tokens":
            self._length = random.choice([1, 16, 64])
            dataset = Windows(dataset, self._length, random.choice([16, 50]))
            self._starts = dataset.starts
        self._dataset, self._samples = dataset, len(dataset)
        self._runs = np.diff(np.searchsorted(self._starts, ends), prepend=0).tolist()
        self._options = draw_options(random, self._name)
        self._options |= draw_way(random, backends, self._options, device.type == "cuda")
        self._epochs, self._world = random.randint(2, 5), random.randint(1, 4)
        together = random.randint(max(self._samples // 300, 4), max(self._samples // 12, 4))
        if random.random() < 0.75:
            together = max(together // 12, 1) * 12  # so that 1 to 4 ranks can share it out
        self._batch = together // self._world
        self._delay, self._writes = random.choice([0.0, 0.0, 0.001, 0.004]), random.random() < 0.3
        self._weights = torch.eye(1024, device=device) if device.type == "cuda" else None
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" and random.random() < 0.3 else None
        self._found: list[tuple[tuple[Any, ...], torch.Tensor | int]] = []
        self._held: list[tuple[Any, ...]] = []

    @property
    def options(self) -> dict[str, Any]:
        """The options that its loaders have now, and what else has been drawn."""
        shown = {"dataset": self._name, "length": self._length, "epochs": self._epochs, "ranks": self._world}
        return {**shown, "batch_size": self._batch, **self._options}

    def run(self, until: float = float("inf")) -> None:
        """Train to the end, or until that time. Raises AssertionError if anything is wrong."""
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            loaders = self._open()
            try:
                self._train(loaders, until)
            finally:
                watch()
                for loader in loaders:
                    loader.close()
            self._look_back(0)
            self._check_found()

    def _train(self, loaders: list[DataLoader], until: float) -> None:
        """All epochs; the loaders in the list are replaced at each stop."""
        epoch, first, delivered = 0, 0, [np.empty(0, np.int64)]
        while epoch < self._epochs:
            schedule = self._schedule(loaders[0], 0)
            stop = self._random.randint(first, schedule.steps) if self._random.random() < 0.6 else None
            assert [len(loader) for loader in loaders] == [schedule.steps] * self._world
            order = make_order(loaders[0].order_options, self._runs, self._options["seed"], epoch)
            iterators = [iter(loader) for loader in loaders]
            for step in range(first, schedule.steps if stop is None else stop):
                if time.monotonic() > until:
                    return
                delivered += self._step(loaders, iterators, order, (epoch, step))
            first = schedule.steps if stop is None else stop
            position = schedule.position(first)
            if stop is None:
                assert [next(one, None) for one in iterators] == [None] * self._world, f"epoch {epoch} does not end"
            if first == schedule.steps:  # each sample has come once, or as many as are not left out
                ids = np.unique(np.concatenate(delivered))
                assert len(ids) == position == sum(map(len, delivered)), f"epoch {epoch}: {len(ids)} of {position}"
                assert schedule.tail == "drop" or position == self._samples
                epoch, first, position, delivered = epoch + 1, 0, 0, [np.empty(0, np.int64)]
                self.counts["epochs"] += 1
                self._check_found()
            if stop is not None:
                first = self._stop(loaders, iterators, position)

    def _open(self) -> list[DataLoader]:
        """The loaders of all ranks. Checksums are compared unless the library refuses that."""
        try:
            return [
                DataLoader(self._dataset, self._batch, device=self._device, ranks=(rank, self._world), **self._options)
                for rank in range(self._world)
            ]
        except OptionError as error:  # far more would have to be read, or cupy is missing
            if error.option != "verify" or self._options["verify"] == "off":
                raise
            self._options["verify"] = "off"
            return self._open()

    def _schedule(self, loader: DataLoader, rank: int) -> Schedule:
        lanes = loader.order_options.lanes
        return Schedule(self._samples, self._batch, rank, self._world, self._options["tail"], lanes)

    def _step(
        self, loaders: list[DataLoader], iterators: list[Any], order: Order, at: tuple[int, int]
    ) -> list[np.ndarray]:
        """One batch of each rank, in any order of them; returns the samples that count."""
        watch()
        random, delivered = self._random, []
        for rank in random.sample(range(self._world), self._world):
            schedule = self._schedule(loaders[rank], rank)
            ids = batch_ids(order, schedule, at[1])
            counted = schedule.counted(at[1], len(ids))
            batch = next(iterators[rank], None)
            where = (*at, rank)
            assert batch is not None, f"no batch at epoch, step, rank {where}"
            self._compare(batch, ids, counted, where)
            self.counts["batches"] += 1
            self.counts.update(f"batches of {name}={self._options[name]}" for name in ("backend", "cache", "verify"))
            self.counts["samples"] += len(ids)
            delivered.append(ids[counted.start : counted.stop])
            if not self._options["reuse_buffers"] and random.random() < 0.05:
                self._held.append((batch, ids, counted, ("held", *where)))
            elif self._writes and random.random() < 0.3:
                batch[next(iter(KINDS[self._name][0]))].zero_()  # its memory is the consumer's
            del batch
            self._look_back(random.randint(2, 8))
            self._work()
        return delivered

    def _work(self) -> None:
        """The model's step: kernels on the consumer's stream, and time."""
        late = self._delay * self._random.random()
        if self._weights is None or self._random.random() < 0.2:
            time.sleep(late)
        else:
            torch.cuda._sleep(int(late * 1.5e9))
            self._weights = self._weights @ self._weights

    def _compare(self, batch: dict[str, Any], ids: np.ndarray, counted: range, where: tuple[Any, ...]) -> None:
        """Compare a batch on its device, where the counts of differences wait for `_check_found`."""
        stored = torch.from_numpy(self._starts[ids])
        if self._length:
            stored = stored[:, None] + torch.arange(self._length)
        found = differences(self._name, batch, stored, self._options.get("ragged", "jagged"))
        if self._options["with_index"]:
            assert batch["index"].tolist() == ids.tolist(), where
        if self._options["with_real"]:
            place = torch.arange(len(ids), device=batch["real"].device)
            found["real"] = (batch["real"] != ((place >= counted.start) & (place < counted.stop))).sum()
        self._found += [((name, *where), count) for name, count in found.items()]
        self.counts["bytes"] += self._sample_bytes * stored.numel()

    def _look_back(self, keep: int) -> None:
        """Compare batches that have been held since, all but some of them."""
        while len(self._held) > keep:
            self._compare(*self._held.pop(self._random.randrange(len(self._held))))
            self.counts["held"] += 1

    def _check_found(self) -> None:
        """Raise AssertionError if a batch differed."""
        found, self._found = self._found, []
        on_device = [count for _, count in found if isinstance(count, torch.Tensor)]
        read = iter(torch.stack(on_device).tolist() if on_device else ())
        wrong = [(at, next(read) if isinstance(count, torch.Tensor) else count) for at, count in found]
        wrong = [(at, count) for at, count in wrong if count]
        assert not wrong, f"batches differ; field, epoch, step, rank and bytes of {len(wrong)}: {wrong[:9]}"

    def _stop(self, loaders: list[DataLoader], iterators: list[Any], position: int) -> int:
        """Stop and resume, in new loaders or the same ones; returns the step that comes next."""
        watch()
        states = [json.dumps(loader.state_dict()) for loader in loaders]
        assert len(set(states)) == 1, f"ranks have other states: {states}"
        how = self._random.choice(["same", "close", "drop", "error"])
        self.counts[f"stops: {how}"] += 1
        if how == "close":
            for loader, iterator in zip(loaders, iterators, strict=True):
                loader.close()
                with suppress(LoaderClosedError):
                    assert next(iterator, None) is None, "a batch of a closed loader"
        elif how == "error":
            with suppress(ZeroDivisionError), ExitStack() as stack:
                for loader in loaders:
                    stack.enter_context(loader)
                raise ZeroDivisionError
        changed = False
        if how != "same":
            loaders.clear()
            iterators.clear()
            changed = self._change(position)
            loaders += self._open()
        for loader in loaders:
            loader.load_state_dict(json.loads(states[0]), change_batch_size=changed)
        first = self._schedule(loaders[0], 0).step_at(position)
        assert [loader.step for loader in loaders] == [first] * self._world
        self.counts["resumes"] += 1
        return first

    def _change(self, position: int) -> bool:
        """Go on with other ranks or another way, perhaps; True if the global batch is another one."""
        random, together = self._random, self._batch * self._world
        if random.random() < 0.7:
            self._options |= draw_way(random, self._backends, self._options, self._device.type == "cuda")
        others = [size for size in (together * 2, together // 2, together // 3) if size and position % size == 0]
        others = [size for size in others if 0 < position <= self._samples - size]
        changed = bool(others) and random.random() < 0.3
        together = random.choice(others) if changed else together
        world = random.choice([size for size in range(1, 5) if together % size == 0])
        self.counts["changes of ranks"] += world != self._world
        self.counts["changes of the batch size"] += changed
        self._world, self._batch = world, together // world
        return changed
