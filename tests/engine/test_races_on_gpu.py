"""Races, each with its negative control: a delayed stream and a removed guard must show corruption, or the test sees
nothing. With the guard there is none.
"""

import time
from itertools import count

import pytest
import torch

from gdsload import BlockShuffle, Bounce, DataLoader, Memory
from gdsload.backends.bounce import copier
from gdsload.engine import resident_source
from gdsload.engine.gpu import assemble_device, batch_memory, device_queue
from gdsload.engine.gpu.assemble_device import DeviceAssembler
from gdsload.engine.resident import ResidentGather
from gdsload.engine.resident_source import VramSource
from gdsload.engine.window_source import WindowSource
from gdsload.kernels import gather_positions
from gdsload.kernels.gather_positions import PositionGather
from gdsload.system import streams
from gdsload.system.pool import Future
from tests.engine.on_host import Past
from tests.on_gpu import CYCLES, numbered_rows, wait_until_kept

pytestmark = pytest.mark.cuda
LATE = {True: CYCLES, False: 10 * CYCLES}  # without its guard a gather ends after a consumer that is itself slowed down


def wrong_batches(path, use, batches=40, again=False, **options):
    """How many of the first batches hold other rows than theirs, by what `use` made of them on the GPU.

    `again`: in the second epoch, whose batches of registered shards are queued by the consumer.
    """
    found = []
    with DataLoader(path, 256, device="cuda", **options) as loader:
        if again:
            for _ in loader:
                pass
        for batch, _ in zip(loader, range(batches), strict=False):
            found.append(use(batch))
            del batch
        torch.cuda.synchronize()
    return wrong_ones(found)


def wrong_ones(found):
    """How many of the first batches of the numbered dataset, of 256 samples each, hold other rows than theirs."""
    rows = [numbered_rows(256 * step, 256 * step + 256) for step in range(len(found))]
    return sum(not torch.equal(mine.cpu(), wanted) for mine, wanted in zip(found, rows, strict=True))


def slow(monkeypatch, owner, name, cycles):
    """Have the GPU wait before what a method queues."""
    real = getattr(owner, name)

    def late(*given, **more):
        torch.cuda._sleep(cycles)
        return real(*given, **more)

    monkeypatch.setattr(owner, name, late)


def later(batch):
    """Uses a batch on the current stream, after a while, and lets go of it at once."""
    torch.cuda._sleep(CYCLES)
    return batch["x"].clone()


@pytest.mark.parametrize(
    ("backend", "again"), [("bounce", False), ("host", False), ("mapped", False), ("mapped", True)]
)
@pytest.mark.parametrize("guard", [True, False])
def test_memory_of_a_dropped_batch(numbered, backend, again, guard, monkeypatch):
    """Kernels that were queued before a batch was dropped still read it."""
    if not guard:
        monkeypatch.setattr("gdsload.engine.gpu.device_queue.hand_over", lambda batch, *_: batch["x"].nbytes)
    wrong = wrong_batches(numbered, later, again=again, backend=backend, memory=Memory(prefetch="4MiB"))
    assert (wrong == 0) == guard, f"{wrong} batches were wrong"


@pytest.mark.parametrize("backend", ["bounce", "mapped"])
@pytest.mark.parametrize("guard", [True, False])
def test_batches_of_a_group_on_two_streams(numbered, backend, guard, monkeypatch):
    """Their memory, which they share, is recorded for the first one's stream at once, and for another's as it comes.

    Here the first one's has nothing to do, and the other one is late.
    """
    real = device_queue.hand_over
    if not guard:
        monkeypatch.setattr(device_queue, "hand_over", lambda batch, *to: real(batch, *to) if len(to) == 2 else 0)
    idle, late, first, found = torch.cuda.Stream(), torch.cuda.Stream(), {0, 1, 3, *range(7, 100, 8)}, []
    with DataLoader(numbered, 256, device="cuda", backend=backend, memory=Memory(prefetch="16MiB")) as loader:
        batches = iter(loader)
        for step in range(min(len(loader), 40)):
            with torch.cuda.stream(idle if step in first else late):
                batch = next(batches)
                found.append(batch["x"].clone() if step in first else later(batch))
                del batch
        torch.cuda.synchronize()
    wrong = wrong_ones(found)
    assert (wrong == 0) == guard, f"{wrong} batches were wrong"


@pytest.mark.parametrize("guard", [True, False])
def test_memory_of_a_batch_that_is_used_on_another_stream(numbered, guard):
    """torch's rule for further streams: wait, then record_stream."""
    other = torch.cuda.Stream()

    def use(batch):
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            mine = later(batch)
        if guard:
            batch["x"].record_stream(other)
        return mine

    wrong = wrong_batches(numbered, use, backend="bounce", memory=Memory(prefetch="4MiB"))
    assert (wrong == 0) == guard, f"{wrong} batches were wrong"


@pytest.mark.parametrize("guard", [True, False])
def test_a_batch_is_complete_when_it_is_handed_out(numbered, guard, monkeypatch):
    """The gather may run late: nobody sees the batch, and nothing it reads from goes back, before it has ended."""
    slow(monkeypatch, assemble_device.DeviceGather, "batches", LATE[guard])
    if not guard:
        monkeypatch.setattr(device_queue, "record", lambda stream: Past())
    wrong = wrong_batches(numbered, lambda batch: batch["x"].clone(), backend="bounce")
    assert (wrong == 0) == guard, f"{wrong} batches were wrong"


@pytest.mark.parametrize("guard", [True, False])
def test_memory_of_a_window_stays_until_it_has_been_gathered(numbered, guard, monkeypatch):
    """Reads are not ordered with the gather: what is given back before it has ended is read into."""
    pytest.importorskip("cupy")
    slow(monkeypatch, WindowSource, "gather", LATE[guard])
    if not guard:
        monkeypatch.setattr(device_queue, "record", lambda stream: Past())
    options = {"batch_size": 256, "shuffle": BlockShuffle(block=64, window=300, lanes=2), "seed": 1}
    with DataLoader(numbered, device="cpu", **options) as loader:
        wanted = [batch["x"] for batch in loader]
    small = {"memory": Memory(prefetch="4MiB", arena="8MiB")}
    with DataLoader(numbered, device="cuda", backend="bounce", **small, **options) as loader:
        found = [batch["x"] for batch in loader]  # which are complete now, if they ever are
        torch.cuda.synchronize()
    wrong = sum(not torch.equal(mine.cpu(), theirs) for mine, theirs in zip(found, wanted, strict=True))
    assert (wrong == 0) == guard, f"{wrong} batches were wrong"


@pytest.mark.parametrize("by", ["driver", "torch"])
@pytest.mark.parametrize("off", ["nothing", "fill again", "landed"])
def test_a_block_that_is_being_copied_is_neither_filled_again_nor_landed(numbered, off, by, monkeypatch):
    copy = copier.Copier.copy

    def slow_copy(self, *arguments):
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(CYCLES)
        copy(self, *arguments)

    monkeypatch.setattr(copier.Copier, "copy", slow_copy)
    if by == "torch":
        monkeypatch.setattr(copier, "driver", lambda: None)
    if off == "fill again":
        monkeypatch.setattr(copier.Copier, "wait", lambda self, block: None)
    if off == "landed":
        monkeypatch.setattr(copier.Copier, "reading", lambda _self, parts, after=None: Future(parts, after))
    wrong = wrong_batches(numbered, lambda batch: batch["x"].clone(), backend=Bounce(pinned="4MiB"))
    assert (wrong == 0) == (off == "nothing"), f"{wrong} batches were wrong"


@pytest.mark.parametrize("guard", [True, False])
def test_a_batch_is_copied_before_its_pinned_memory_is_filled_again(numbered, guard, monkeypatch):
    """And before it is handed out: copies may be late."""
    slow(monkeypatch, device_queue.DeviceQueue, "copied", LATE[guard])
    if not guard:
        monkeypatch.setattr(device_queue, "record", lambda stream: Past())
    wrong = wrong_batches(numbered, lambda batch: batch["x"].clone(), backend="host", memory=Memory(prefetch="4MiB"))
    assert (wrong == 0) == guard, f"{wrong} batches were wrong"


@pytest.mark.parametrize("backend", ["bounce", "mapped", "auto", "host"])
def test_a_consumer_on_a_stream_of_its_own(numbered, backend):
    mine = torch.cuda.Stream()
    with torch.cuda.stream(mine):
        wrong = wrong_batches(numbered, later, backend=backend, memory=Memory(prefetch="4MiB"))
    assert wrong == 0


def strangers(found):
    """How many batches hold other rows than those of their index."""
    torch.cuda.synchronize()
    return sum(not torch.equal(rows.cpu(), index.int()[:, None].expand(-1, 1024)) for rows, index in found)


@pytest.mark.parametrize(
    "order",
    [{"shuffle": "full"}, {}, {"sampler": torch.arange(19_999, -1, -1)}],
    ids=["full", "in order", "ids from the host"],
)
@pytest.mark.parametrize("guard", [True, False])
def test_a_batch_that_is_made_from_positions_is_complete(numbered, order, guard, monkeypatch):
    """As with pieces: the gather may run late. What is handed out sooner holds other rows, or none.

    A thread queues the first (its index takes the host some planning), the consumer the second, threads the last.
    """
    pytest.importorskip("cupy")
    with DataLoader(numbered, 256, device="cuda", backend="mapped", with_index=True, **order) as loader:
        for _ in loader:
            pass
        slow(monkeypatch, ResidentGather, "gather", LATE[guard])
        if not guard:
            monkeypatch.setattr(resident_source, "record", lambda stream: Past())
        wrong = strangers([(batch["x"].clone(), batch["index"]) for batch in loader])
    assert (wrong == 0) == guard, f"{wrong} batches were wrong"


BEFORE_ROWS = pytest.mark.parametrize(
    ("options", "sort"),
    [
        ({"shuffle": "full"}, True),
        ({"shuffle": "block"}, False),
        ({"shuffle": "block"}, True),
        ({"sampler": torch.arange(19_999, -1, -1)}, False),
    ],
    ids=["full, sorted", "block", "block, sorted", "ids from the host"],
)
"""Data that must be made before rows can be fetched: ids, or samples in the order of their addresses."""


def epochs(path, options, device, begin=None):
    """The rows of the second epoch, with the batches of the first gone."""
    with DataLoader(path, 256, device=device, backend="mapped" if device == "cuda" else "auto", **options) as loader:
        for _ in loader:
            pass
        if begin:
            begin()
        found = [batch["x"].clone() for batch in loader]
        return torch.cat([rows.cpu() for rows in found])


@BEFORE_ROWS
@pytest.mark.parametrize("guard", [True, False])
def test_rows_are_fetched_once_it_is_known_which(numbered, options, sort, guard, monkeypatch):
    """Work on a side stream may be late. A kernel that does not wait for it fetches the first sample only."""
    pytest.importorskip("cupy")
    call, calls = DeviceAssembler.side, []

    def late(self, make):
        def slowly():
            made = make()
            found = tuple(torch.zeros_like(tensor) for tensor in made)
            torch.cuda.synchronize()
            torch.cuda._sleep(CYCLES)
            for tensor, there in zip(found, made, strict=True):
                tensor.copy_(there)
            return found

        calls.append(None)
        return call(self, slowly)

    def begin():
        monkeypatch.setattr(DeviceAssembler, "side", late)
        if not guard:
            monkeypatch.setattr(assemble_device, "record", lambda _stream: torch.cuda.Event())

    if sort:
        monkeypatch.setattr(gather_positions, "SORTED_FIELD_BYTES", 0)
        monkeypatch.setattr(gather_positions, "SORTED_ROWS", 0)
    rows = epochs(numbered, options, "cuda", begin)
    assert calls
    assert torch.equal(rows, epochs(numbered, options, "cpu")) == guard


@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize("options", [{"shuffle": "block"}, {"sampler": torch.arange(19_999, -1, -1)}])
def test_ids_stay_until_the_rows_are_fetched(numbered, options, guard, monkeypatch):
    """They are of a stream that runs ahead, and the next ones would be written over them."""
    pytest.importorskip("cupy")

    def careless(self, make):
        """All that it does, but `record_stream`."""
        with torch.cuda.stream(self._side):
            made, event = make(), streams.record(self._side)
        torch.cuda.current_stream(self.device).wait_event(event)
        return made

    def begin():
        slow(monkeypatch, PositionGather, "_launch", CYCLES)
        if not guard:
            monkeypatch.setattr(DeviceAssembler, "side", careless)

    rows = epochs(numbered, options, "cuda", begin)
    assert torch.equal(rows, epochs(numbered, options, "cpu")) == guard


@pytest.mark.parametrize("guard", [True, False])
def test_another_stream_in_the_middle_of_a_group_out_of_vram(numbered, guard, monkeypatch):
    """A group is queued on the stream that asks for its first batch; who asks for the next one may be on another."""
    pytest.importorskip("cupy")
    others = [torch.cuda.Stream(), torch.cuda.Stream()]
    with DataLoader(numbered, 256, "full", device="cuda", cache="vram", with_index=True) as loader:
        for _ in loader:
            pass
        wait_until_kept(loader)
        slow(monkeypatch, ResidentGather, "gather", 5 * CYCLES)
        if not guard:
            monkeypatch.setattr(VramSource, "hand_over", lambda self, _batches: lambda batch: batch)
        epoch, found = iter(loader), []
        for step in range(len(loader)):
            with torch.cuda.stream(others[step % 2]):
                batch = next(epoch)
                found.append((batch["x"].clone(), batch["index"]))
                del batch
        wrong = strangers(found)
    assert (wrong == 0) == guard, f"{wrong} batches were wrong"


@pytest.mark.parametrize(
    ("backend", "off"),
    [("mapped", "nothing"), ("bounce", "nothing"), ("host", "nothing"), ("mapped", "gathered"), ("mapped", "held")],
)
def test_a_batch_that_is_transformed_on_another_stream(numbered, backend, off, monkeypatch):
    """Transforms come after the gather, and its memory is gathered into again only after them."""
    pytest.importorskip("cupy")
    assemble, calls = assemble_device.DeviceAssembler.assemble, count()

    def later_assemble(self, *given):
        """One thread asks for memory while the other's transforms are under way."""
        time.sleep(0.03 * (next(calls) % 2))
        return assemble(self, *given)

    def slow_transform(batch):
        if off != "gathered":
            torch.cuda._sleep(CYCLES)
        return {"x": batch["x"].clone()}

    if off == "gathered":
        slow(monkeypatch, ResidentGather, "gather", 5 * CYCLES)
        monkeypatch.setattr(torch.cuda.Stream, "wait_event", lambda self, event: None)
    monkeypatch.setattr(assemble_device.DeviceAssembler, "assemble", later_assemble)
    if off == "held":  # each batch has memory of its own: what they share is free only after the last one's transform
        monkeypatch.setattr(batch_memory, "SHARED_BYTES", 0)
        nbytes = lambda batch, *_: 0 if isinstance(batch, list) else batch["x"].nbytes  # noqa: E731
        monkeypatch.setattr(device_queue, "hand_over", nbytes)
    wrong, options = 0, {"device_transform": slow_transform, "memory": Memory(prefetch="16MiB")}
    with DataLoader(numbered, 256, device="cuda", backend=backend, **options) as loader:
        for _ in range(2):  # the second epoch's batches are gathered from positions if they are mapped
            for number, batch in enumerate(loader):
                rows = torch.arange(256 * number, 256 * number + len(batch["x"]), dtype=torch.int32, device="cuda")
                wrong += not torch.equal(batch["x"], rows[:, None].expand(-1, 1024))
    assert (wrong == 0) == (off == "nothing"), f"{wrong} batches were wrong"
