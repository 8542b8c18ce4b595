"""Conformance tests for batch sources.

    class TestMine(BatchSourceTests):
        @pytest.fixture
        def open_source(self, backends):
            def opened(dataset, steps, fields, transform=None):
                backends.append(RecordingBackend(...))       # if the source reads by a backend: the suite closes it
                return MySource(...)                         # of these steps and fields
            return opened

The reference is `ShardDataset.read_batch`. A source that cannot make batches of ragged fields says `ragged = False`,
and one whose batches are made of copies of the files `copies = True`.
"""

import os
import threading
import time

import numpy as np
import pytest

from gdsload.engine.steps import Ordered
from gdsload.errors import FileChangedError
from gdsload.loader.dataset import ShardDataset
from gdsload.order import OrderOptions, Schedule, make_order
from gdsload.shards.format.schema import Field
from gdsload.shards.writer import ShardWriter
from gdsload.system.failed import Failed
from gdsload.testing.batches import fingerprint

_SAMPLES, _BATCH = 230, 8
_ORDERS = (
    OrderOptions("sequential", 0, 0, 1),
    OrderOptions("full", 0, 0, 1),
    OrderOptions("block", 4, 20, 3),
)
_LATER_S = 0.03
"""Longer than the interval in which a file's identity is not looked up again."""
_ENDING_S = 1.0
"""Longer than a thread takes to end whose work is over."""


class BatchSourceTests:
    """Tests of one batch source; pytest collects a subclass whose name begins with "Test"."""

    ragged = True
    """True if the source makes batches of ragged fields and texts."""
    copies = False
    """True if the source's batches are made of copies of the files, which stay what they are if a file changes."""

    @pytest.fixture
    def backends(self):
        """The backends that sources read by: `open_source` adds them, and the suite examines and closes them.

        No source may release a read twice, or before its bytes have landed.
        """
        opened = []
        yield opened
        for backend in opened:
            backend.close()
        assert [(backend.released_twice, backend.released_early) for backend in opened] == [(0, 0)] * len(opened)

    @pytest.fixture
    def no_thread_left(self):
        """Fails if a thread is left when everything is closed; to be requested before `open_source`."""
        before = set(threading.enumerate())
        yield
        end = time.monotonic() + _ENDING_S
        # Not `join`, which refuses a thread that another is just starting.
        while (left := set(threading.enumerate()) - before) and time.monotonic() < end:
            time.sleep(0.001)
        assert not left, f"{', '.join(thread.name for thread in left)} was left"

    @pytest.fixture
    def open_source(self):
        """The function that opens the source of some steps; for a subclass to define."""
        raise NotImplementedError("define a fixture open_source that gives a function to the source; see the module")

    @pytest.fixture
    def dataset(self, tmp_path_factory):
        """A dataset of several shards, with rows of one shape, packed fields, ragged rows and texts."""
        if self.ragged not in _written:
            path = tmp_path_factory.mktemp("conformance") / "shards"
            _write(path, ragged=self.ragged)
            _written[self.ragged] = path
        return ShardDataset(_written[self.ragged])

    @pytest.fixture(params=_ORDERS, ids=lambda options: str(options.shuffle))
    def steps(self, request, dataset):
        """The steps of an epoch, of every order."""
        return _steps(request.param, dataset)

    @pytest.mark.parametrize("group", [1, 3, 100])
    def test_batches_are_the_references(self, open_source, dataset, steps, group):
        """However many are made at once."""
        source = open_source(dataset, steps, tuple(dataset.schema))
        found = []
        for low in range(0, steps.steps, group):
            pending = source.start(range(low, min(low + group, steps.steps)))
            assert isinstance(pending.landed(), bool)
            found.append(pending.result(lambda: False))
            assert pending.landed()
            pending.drop()
        assert [one.error for one in found] == [None] * len(found)
        assert [size for one in found for size in one.sizes] == [steps.size(step) for step in range(steps.steps)]
        batches = [batch for one in found for batch in _handed_over(source, one.batches)]
        assert batches == _expected(dataset, steps, range(steps.steps))

    def test_groups_are_started_ahead_and_finished_in_any_order(self, open_source, dataset, steps):
        """As several threads finish them."""
        source = open_source(dataset, steps, ("x", "y"))
        groups = [range(low, min(low + 2, steps.steps)) for low in range(0, 12, 2)]
        pending = [source.start(group) for group in groups]
        found = {}
        for number in (3, 0, 5, 1, 4, 2):
            ready = pending[number].result(lambda: False)
            found[number] = _handed_over(source, ready.batches)
        for number, group in enumerate(groups):
            assert found[number] == _expected(dataset, steps, group, ("x", "y"))

    @pytest.mark.parametrize("closed", [False, True])
    def test_steps_are_left_out_and_started_again(self, open_source, dataset, steps, closed):
        """Somebody else may have made them, or a group has failed; `close` only releases what is held for later steps."""
        source = open_source(dataset, steps, ("x",))
        for group in (range(2), range(2, 5), range(9, 11), range(11, 12), range(20, 25), range(2)):
            ready = source.start(group).result(lambda: False)
            assert _handed_over(source, ready.batches) == _expected(dataset, steps, group, ("x",))
            if closed:
                source.close()

    def test_batches_stay_as_they_are(self, open_source, dataset, steps):
        """They are the user's, whatever is made, dropped or closed later."""
        source = open_source(dataset, steps, ("x", "y"))
        ready = source.start(range(2)).result(lambda: False)
        batches = list(map(source.hand_over(ready.batches), ready.batches))
        for later in (range(2, 4), range(2)):
            source.start(later).result(lambda: False)
            source.start(later).drop()
        source.close()
        assert [_print(batch) for batch in batches] == _expected(dataset, steps, range(2), ("x", "y"))

    @pytest.mark.parametrize("wrong", [3, 8, 9])
    def test_an_error_of_a_transform_takes_the_place_of_its_batch(self, open_source, dataset, steps, wrong):
        """It is the very error that was raised, and the batches after it are made."""
        error, group = ValueError("odd"), range(3, 9)

        def transform(step, batch):
            if step == wrong:
                raise error
            return {"y": batch["y"] + step, "step": step}

        source = open_source(dataset, steps, ("x", "y"), transform)
        ready = source.start(group).result(lambda: False)
        errors = [one.error for one in ready.batches if isinstance(one, Failed)]
        assert errors == [error for step in group if step == wrong]
        assert [isinstance(one, Failed) for one in ready.batches] == [step == wrong for step in group]
        made = [step for step in group if step != wrong]
        plain = [dataset.read_batch(steps.positions(range(step, step + 1))) for step in made]
        batches = [one for one in ready.batches if not isinstance(one, Failed)]
        assert _handed_over(source, batches) == [
            _print({"y": batch["y"] + step, "step": step}) for step, batch in zip(made, plain, strict=True)
        ]
        assert ready.sizes == [steps.size(step) for step in group]
        assert ready.error is None

    def test_nothing_is_held_for_groups_that_are_made_or_dropped(self, open_source, backends, dataset, steps):
        """However often: what is held does not add up."""
        source, held = open_source(dataset, steps, ("x",)), []
        for made in (True, True, False, False):
            pending = source.start(range(4))
            if made:
                pending.result(lambda: False)
            for _ in range(2):
                pending.drop()
            source.close()
            held.append(source.arena_bytes(range(4), 1 << 20))
            assert _held(backends) == 0
        assert held == [held[0]] * 4

    def test_arena_memory_is_accounted_for(self, open_source, backends, dataset, steps):
        """`arena_bytes` covers the memory held and that of the next group, so that a caller can keep to a budget."""
        source, ahead = open_source(dataset, steps, ("x",)), []
        for low in range(0, 24, 2):
            group, held = range(low, low + 2), _held(backends)
            accounted = source.arena_bytes(group, 1)
            ahead.append(source.start(group))
            if low and _held(backends) > held:
                assert accounted > held
            elif low:  # how much the first takes nobody knows
                assert accounted == 0
            if len(ahead) > 3:
                ahead.pop(0).result(lambda: False)

    def test_close_ends_all_threads(self, no_thread_left, open_source, dataset, steps):
        """Those of the source, and with the backend all."""
        source = open_source(dataset, steps, ("x",))
        source.start(range(2)).result(lambda: False)
        source.start(range(2, 4)).drop()
        source.close()

    def test_made_again(self, open_source, dataset, steps):
        """To find the batch that an error belongs to."""
        source = open_source(dataset, steps, ("x", "y"))
        source.start(range(3)).drop()
        again = source.again()
        for step in range(4):
            ready = again.start(range(step, step + 1)).result(lambda: False)
            assert _handed_over(source, ready.batches) == _expected(dataset, steps, range(step, step + 1), ("x", "y"))
        again.close()

    @pytest.mark.parametrize("started", [False, True], ids=["before", "meanwhile"])
    def test_a_file_that_changes_is_noticed(self, open_source, backends, dataset, steps, started):
        """When batches are started, or when they are there; and nothing is held for them then."""
        source, group = open_source(dataset, steps, ("x",)), range(steps.steps)
        source.start(group).result(lambda: False)
        expected = _expected(dataset, steps, group, ("x",))
        pending = source.start(group) if started else None
        for shard in dataset.shards:
            os.utime(shard.file)
        time.sleep(_LATER_S)

        def made():
            making = pending or source.start(group)
            try:
                return making.result(lambda: False).batches
            finally:
                making.drop()

        if self.copies:
            assert _handed_over(source, made()) == expected
        else:
            with pytest.raises(FileChangedError, match=r"file|shard"):
                made()
        source.close()
        assert _held(backends) == 0


class WindowSourceTests(BatchSourceTests):
    """Tests of a source that reads windows as runs, and has the GPU find samples in them."""

    ragged = False

    @pytest.fixture(params=[OrderOptions("block", 4, 20, 3), OrderOptions("block", 1, 9, 5)], ids=str)
    def steps(self, request, dataset):
        """The steps of an epoch, of orders with windows."""
        return _steps(request.param, dataset)


_written = {}
"""By whether they have ragged fields, the shards of all suites of this process."""


def _write(path, *, ragged):
    numbers = np.arange(_SAMPLES)
    fields = {"x": Field("int32", (3,)), "y": Field("float64"), "wide": Field("uint8", (20,))}
    fields |= {"odd": Field("bool"), "short": Field("int16", (2,))}  # with x and y four that are packed
    batch = {"x": np.stack([numbers, -numbers, np.full(_SAMPLES, 7)], axis=1).astype(np.int32)}
    batch |= {"y": numbers.astype(np.float64), "wide": np.repeat(numbers.astype(np.uint8)[:, None], 20, axis=1)}
    batch |= {"odd": numbers % 2 == 1, "short": np.stack([numbers, np.ones_like(numbers)], axis=1).astype(np.int16)}
    if ragged:
        rows = numbers % 4
        points = np.random.default_rng(1).standard_normal((int(rows.sum()), 2)).astype(np.float32)
        fields |= {"points": Field("float32", (None, 2)), "text": "str"}
        batch |= {"points": (points, np.cumsum([0, *rows])), "text": [f"sample {number}" for number in numbers]}
    with ShardWriter(path, fields, shard_bytes="4KiB") as writer:
        writer.write_batch(batch)


def _steps(options, dataset):
    order = make_order(options, dataset.counts.tolist(), 3, 1)
    return Ordered(order, Schedule(len(dataset), _BATCH, lanes=options.lanes))


def _handed_over(source, batches):
    """Fingerprints of a group's batches as the consumer gets them."""
    return [_print(batch) for batch in map(source.hand_over(batches), batches)]


def _held(backends):
    """Arena memory that is held, in bytes."""
    return sum(backend.held_bytes for backend in backends)


def _expected(dataset, steps, wanted, fields=None):
    """The expected fingerprints of the batches of some steps, from plain reads."""
    read = [dataset.read_batch(steps.positions(range(step, step + 1))) for step in wanted]
    return [_print({name: batch[name] for name in fields or batch}) for batch in read]


def _print(batch):
    return fingerprint({name: batch[name] for name in sorted(batch)})
