"""Transforms on the GPU: ahead of the consumer, ordered, and the same whatever way the bytes take."""

import pytest
import torch

from gdsload import DataLoader, Memory
from gdsload.order import Purpose, derive_key
from gdsload.testing import assert_resumes_everywhere, fingerprint
from gdsload.transforms import Cast, CenterCrop, ChannelsLast, Normalize, RandomCrop, RandomFlip
from tests.on_gpu import CYCLES, WAYS, epoch_prints, numbered_rows, used_late, wait_until_kept

pytestmark = pytest.mark.cuda


def square(batch):
    """Rows of the numbered dataset as images of 4 channels, 16 x 16."""
    return {**batch, "x": batch["x"].view(-1, 4, 16, 16)}


AUGMENT = [square, RandomCrop("x", 14, padding=1), RandomFlip("x"), Cast("x", torch.float32)]


def settle(loader):
    """Epochs until the samples are where later ones find them."""
    tries = 3
    if loader.cache.asked == "vram":
        list(loader)
        wait_until_kept(loader)
        tries = 1
    for _ in range(tries):
        list(loader)
    loader.set_epoch(0)


def settled(path, batch_size, shuffle, **options):
    loader = DataLoader(path, batch_size, shuffle, device="cuda", **options)
    settle(loader)
    return loader


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_what_is_not_random_is_as_on_the_cpu(numbered, way):
    """Pure rearrangements and exact arithmetic, in the first epoch and in later ones, which take other ways."""
    transforms = [
        square,
        CenterCrop("x", 10),
        Normalize("x", [8.0], [0.5]),
        ChannelsLast("x"),
        Cast("x", torch.float64),
    ]
    options = {"batch_size": 700, "shuffle": "full", "device_transform": transforms, "with_index": True}
    expected = epoch_prints(numbered, 3, device="cpu", **options)
    with DataLoader(numbered, device="cuda", **way, **options) as loader:
        first = [fingerprint(batch) for batch in loader]
        settle(loader)
        later = [[fingerprint(batch) for batch in loader] for _ in range(3)]
    assert first == expected[0]
    assert later == expected


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_what_is_random_is_drawn_from_the_key_of_the_batch(numbered, way):
    state, cpu_state = torch.cuda.get_rng_state(), torch.get_rng_state()
    with settled(numbered, 700, "full", seed=5, device_transform=AUGMENT, **way) as loader:
        found = [batch["x"].cpu() for batch in loader]
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert torch.equal(torch.get_rng_state(), cpu_state)
    with DataLoader(numbered, 700, "full", seed=5, device="cuda") as loader:
        for step, batch in enumerate(loader):
            generator = torch.Generator("cuda").manual_seed(derive_key(5, 0, Purpose.TRANSFORM, 700 * step))
            cropped = RandomCrop("x", 14, padding=1)(square(batch), generator)
            flipped = RandomFlip("x")(cropped, generator)["x"]
            assert torch.equal(found[step], flipped.float().cpu())


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("shuffle", ["full", "block"])
def test_resumes_at_every_step(numbered, way, shuffle):
    assert_resumes_everywhere(lambda: settled(numbered, 4000, shuffle, device_transform=AUGMENT, **way))


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_consumer_may_be_behind_and_drop_what_it_got(numbered, way):
    """Memory that a transform allocated is not used again while kernels of the consumer's stream still read it."""

    def nest(batch):
        return [(batch["x"].clone(),), {"twice": [batch["x"] * 2]}]

    with settled(numbered, 512, False, device_transform=nest, memory=Memory(prefetch="4MiB"), **way) as loader:
        found = used_late(loader, lambda batch: (batch[0][0].clone(), batch[1]["twice"][0].clone()))
    for step, (once, twice) in enumerate(found):
        rows = numbered_rows(512 * step, 512 * step + 512)
        assert torch.equal(once.cpu(), rows)
        assert torch.equal(twice.cpu(), rows * 2)


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning", "ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.jagged, torch.strided], ids=str)
def test_tensors_of_any_layout_may_be_dropped(numbered, layout):
    """As above, of what has no memory of its own."""

    def make(batch):
        rows = batch["x"][:, :16] + 1
        if layout in (torch.jagged, torch.strided):
            return torch.nested.nested_tensor(list(rows[::64]), layout=layout)
        return rows.to_sparse(layout=layout)

    def dense(batch):
        return torch.stack(batch.unbind()) if batch.is_nested else batch.to_dense()

    with DataLoader(numbered, 512, device="cuda", backend="bounce", device_transform=make) as loader:
        found = used_late(loader, dense)
    for step, rows in enumerate(found):
        expected = numbered_rows(512 * step + 1, 512 * step + 513)[:, :16]
        assert torch.equal(rows.cpu(), expected[::64] if len(rows) == 8 else expected)


def test_tensors_of_a_list_are_recorded_or_else_overwritten(numbered, monkeypatch):
    """The negative control of the test above: without the guard it must see wrong batches."""
    monkeypatch.setattr("gdsload.engine.gpu.device_queue.hand_over", lambda *_: 0)
    options = {
        "backend": "bounce",
        "memory": Memory(prefetch="4MiB"),
        "device_transform": lambda batch: [batch["x"] * 2],
    }
    with DataLoader(numbered, 256, device="cuda", **options) as loader:
        found = used_late(loader, lambda batch: batch[0].clone(), 40)
    wanted = [numbered_rows(256 * step, 256 * step + 256) * 2 for step in range(40)]
    assert not all(torch.equal(twice.cpu(), rows) for twice, rows in zip(found, wanted, strict=True))


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_stream_it_runs_on(numbered, way):
    """The loader's own, while bytes are read; the consumer's, out of VRAM."""
    streams = set()

    def note(batch):
        streams.add(torch.cuda.current_stream().cuda_stream)
        return batch

    with settled(numbered, 512, False, device_transform=note, **way) as loader:
        streams.clear()
        mine = torch.cuda.Stream()
        with torch.cuda.stream(mine):
            list(loader)
    assert len(streams) == 1
    assert (mine.cuda_stream in streams) == (way == {"cache": "vram"})


@pytest.mark.parametrize("backend", ["bounce", "mapped", "host"])
def test_it_sees_what_was_queued_before_the_epoch(numbered, backend):
    factor = torch.zeros((), device="cuda", dtype=torch.int32)
    with DataLoader(
        numbered, 512, device="cuda", backend=backend, device_transform=lambda b: b["x"] * factor
    ) as loader:
        torch.cuda._sleep(10 * CYCLES)
        factor.fill_(3)
        found = torch.cat([batch[:, 0] for batch in loader])
    assert torch.equal(found.cpu(), 3 * torch.arange(20_000, dtype=torch.int32))


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(("bad", "ahead"), [(0, True), (1, True), (17, True), (0, False), (17, False)])
def test_an_error_comes_out_at_its_batch(numbered, way, bad, ahead):
    armed = []

    def fail(batch):
        if armed and int(batch["x"][0, 0]) == 512 * bad:
            raise ZeroDivisionError("bad luck")
        return batch

    with settled(numbered, 512, False, device_transform=fail, ahead=ahead, **way) as loader:
        armed.append(1)
        iterator = iter(loader)
        for step in range(bad):
            assert int(next(iterator)["x"][0, 0]) == 512 * step
        with pytest.raises(ZeroDivisionError, match="bad luck") as caught:
            next(iterator)
        assert caught.value.__notes__[-1] == f"in device_transform, for the batch of step {bad} of epoch 0"
        assert int(next(iterator)["x"][0, 0]) == 512 * (bad + 1)
        assert sum(1 for _ in iterator) == len(loader) - bad - 2


class Net(torch.nn.Module):
    """A classifier of rows; `step` trains it on a batch's tensors."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.net = torch.nn.Sequential(torch.nn.Linear(1024, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).cuda()
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.01)

    def step(self, batch):
        self.optimizer.zero_grad(set_to_none=False)
        loss = torch.nn.functional.cross_entropy(self.net(batch["x"]), batch["y"])
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def copied(self):
        return [parameter.detach().clone() for parameter in self.net.parameters()]


def prepared(batch):
    return {"x": batch["x"].float() / 20_000, "y": batch["x"][:, 0].long() % 4}


TRAINING = {"device": "cuda", "drop_last": True, "device_transform": prepared}


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_training_step_in_a_cuda_graph(numbered, way):
    """Captured once on the buffers and replayed for each batch of two epochs, it trains as the eager step does."""
    eager = Net()
    eager_losses = []
    with DataLoader(numbered, 512, "full", **TRAINING, **way) as loader:
        for _ in range(2):
            eager_losses += [float(eager.step(batch)) for batch in loader]

    net = Net()
    begin = net.copied()
    places, losses = set(), []
    graph = torch.cuda.CUDAGraph()
    with DataLoader(numbered, 512, "full", reuse_buffers=True, **TRAINING, **way) as loader:
        first = next(iter(loader))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                net.step(first)
        torch.cuda.current_stream().wait_stream(side)
        with torch.no_grad():
            for parameter, value in zip(net.net.parameters(), begin, strict=True):
                parameter.copy_(value)
        # The loader's own threads go on meanwhile; only this one may not do what a capture forbids.
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            loss = net.step(first)
        loader.set_epoch(0)
        for _ in range(2):
            for batch in loader:
                places.add((batch["x"].data_ptr(), batch["y"].data_ptr()))
                graph.replay()
                losses.append(loss.clone())
    assert places == {(first["x"].data_ptr(), first["y"].data_ptr())}
    assert torch.allclose(torch.stack(losses).cpu(), torch.tensor(eager_losses), rtol=1e-4)
    for mine, wanted in zip(net.net.parameters(), eager.net.parameters(), strict=True):
        assert torch.allclose(mine, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_buffers_hold_what_batches_are(numbered, way):
    """Copied on the stream that is current, and read there: also by a consumer that is late."""
    found, places = [], set()
    mine = torch.cuda.Stream()
    with settled(numbered, 768, False, reuse_buffers=True, with_index=True, **way) as loader:
        mine.wait_stream(torch.cuda.current_stream())  # the buffers were last filled there
        with torch.cuda.stream(mine):
            for batch in loader:
                torch.cuda._sleep(CYCLES // 10)
                found.append(batch["x"].clone())
                places.add((batch["x"].data_ptr(), batch["index"].data_ptr()))
    mine.synchronize()
    assert len(places) == 1
    assert torch.equal(torch.cat(found).cpu(), numbered_rows(0, 20_000))
