"""The wrappers and suites of `gdsload.testing` do what they say, and find the mistakes that they are made for."""

import time
from contextlib import nullcontext

import numpy as np
import pytest
import torch

import gdsload
from gdsload.backends.base import ShardAddresses
from gdsload.backends.host import HostBackend
from gdsload.errors import FileChangedError, ReadError
from gdsload.shards.local_files import LocalFiles
from gdsload.testing import Fault, FaultyBackend, RecordingBackend, SlowBackend, assert_resumes_everywhere, fingerprint
from gdsload.testing.conformance import extents


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("wrapped") / "shards"
    with gdsload.ShardWriter(path, shard_bytes=4000) as writer:
        writer.write_batch({"x": np.arange(1000)})
    return path


@pytest.fixture
def backend(path):
    dataset = gdsload.ShardDataset(path)
    backend = HostBackend(LocalFiles(dataset.sources, mapped=False))
    yield backend
    backend.close()


class TestFaulty:
    def test_by_call(self, backend):
        faulty = FaultyBackend(backend, Fault(lambda: ReadError("bad"), calls=[1, 2], times=1))
        faulty.read(extents([(0, 0, 5)])).completion.wait()
        with pytest.raises(ReadError, match="bad"):
            faulty.read(extents([(0, 0, 5)]))
        faulty.read(extents([(0, 0, 5)])).completion.wait()
        assert faulty.struck == 1

    def test_by_file_and_when_the_bytes_land(self, backend):
        faulty = FaultyBackend(backend, Fault(lambda: ReadError("bad"), files=[1], when="completion"))
        faulty.read(extents([(0, 0, 5)])).completion.wait()
        landing = faulty.read(extents([(0, 0, 5), (1, 0, 5)]))
        for _ in range(2):
            with pytest.raises(ReadError, match="bad"):
                landing.completion.wait()
        assert landing.completion.landed

    @pytest.mark.parametrize(
        ("triple", "bad"),
        [((0, 10, 5), True), ((0, 11, 5), False), ((0, 5, 6), True), ((0, 5, 5), False), ((1, 10, 5), False)],
    )
    def test_by_place(self, backend, triple, bad):
        faulty = FaultyBackend(backend, Fault(lambda: ReadError("bad"), places=[(0, 10)]))
        with pytest.raises(ReadError, match="bad") if bad else nullcontext():
            faulty.read(extents([triple])).completion.wait()

    def test_in_check(self, backend):
        faulty = FaultyBackend(backend, Fault(lambda: FileChangedError("gone"), files=[2], when="check"))
        faulty.check(np.array([0, 1]))
        with pytest.raises(FileChangedError, match="gone"):
            faulty.check(np.array([0, 2]))


def test_slow(backend):
    slow = SlowBackend(backend, 0.05)
    began = time.monotonic()
    landing = slow.read(extents([(0, 0, 5)]))
    assert not landing.completion.landed
    landing.completion.wait()
    assert landing.completion.landed
    assert time.monotonic() - began >= 0.05


def test_recording(backend):
    recording = RecordingBackend(backend)
    landings = [recording.read(extents([(0, 0, 5), (1, 7, 9)])) for _ in range(2)]
    held = recording.held_bytes
    assert held == sum(landing.nbytes for landing in landings) > 0
    landings[0].release()
    assert recording.held_bytes == held - landings[0].nbytes
    landings[0].release()
    assert recording.released_twice == 1
    landings[1].release()
    assert (recording.held_bytes, recording.most_held_bytes) == (0, held)
    assert [wanted.total_bytes for wanted in recording.reads] == [14, 14]
    recording.check(np.array([1]))
    assert recording.checked == [[1]]
    assert (recording.name, recording.in_place) == (backend.name, backend.in_place)


def test_recording_what_is_released_too_early(backend):
    recording = RecordingBackend(SlowBackend(backend, 0.05))
    landings = [recording.read(extents([(0, 0, 5)])) for _ in range(2)]
    landings[0].release()
    landings[1].completion.wait()
    landings[1].release()
    assert (recording.released_early, recording.released_twice) == (1, 0)


class Reaching(HostBackend):
    """A backend whose device reaches all shards."""

    addressable = True

    def addresses(self):
        return ShardAddresses(self.files.base, int)


@pytest.mark.parametrize("wrap", [FaultyBackend, RecordingBackend, lambda inner: SlowBackend(inner, 0.1)])
def test_wrappers_hand_addresses_on(backend, wrap):
    assert (wrap(backend).addressable, wrap(backend).addresses()) == (False, None)
    wrapped = wrap(Reaching(backend.files))
    assert wrapped.addressable
    assert wrapped.addresses().base is backend.files.base


class TestFingerprint:
    @pytest.mark.parametrize(
        "other",
        [
            {"x": torch.tensor([1, 2, 4])}, {"y": torch.tensor([1, 2, 3])}, {"x": torch.tensor([[1, 2, 3]])},
            {"x": torch.tensor([1, 2, 3], dtype=torch.int32)}, {"x": [1, 2, 3]}, {"x": np.array([1, 2, 3])},
            {"x": torch.tensor([1, 2, 3]), "y": 1},
            {"x": (torch.tensor([1, 2, 3]),)}, {"x": "1"}, {"x": b"1"}, {"x": None}, {},
            {"x": torch.nested.nested_tensor_from_jagged(torch.tensor([1, 2, 3]), torch.tensor([0, 3]))},
        ],
        ids=repr,
    )  # fmt: skip
    def test_any_difference_shows(self, other):
        batch = {"x": torch.tensor([1, 2, 3])}
        assert fingerprint(batch) == fingerprint({"x": torch.tensor([1, 2, 3])})
        assert fingerprint(batch) != fingerprint(other)

    def test_boundaries_count(self):
        assert fingerprint(["ab", "c"]) != fingerprint(["a", "bc"])
        assert fingerprint([["a"], "b"]) != fingerprint([["a", "b"]])

    def test_bits_count_and_not_values(self):
        assert fingerprint(torch.tensor(0.0)) != fingerprint(torch.tensor(-0.0))
        assert fingerprint(torch.tensor(float("nan"))) == fingerprint(torch.tensor(float("nan")))


class Wrong(gdsload.DataLoader):
    """A loader with a mistake in its state."""

    mistake = ""

    def state_dict(self):
        state = super().state_dict()
        if self.mistake == "one batch late" and state["position"]:
            state["position"] -= 100
        if self.mistake == "no JSON":
            state["position"] = np.int64(state["position"])
        return state

    def load_state_dict(self, state):
        super().load_state_dict(state)
        if self.mistake == "starts again":
            self.set_epoch(5)
            self.set_epoch(0)

    def __len__(self):
        return super().__len__() + (self.mistake == "announces too many")


class TestResumesEverywhere:
    @pytest.mark.parametrize(
        ("mistake", "error", "says"),
        [
            *[(one, AssertionError, "resumed|batches|state") for one in ("one batch late", "starts again")],
            ("announces too many", AssertionError, "batches were announced"),
            ("no JSON", TypeError, "not JSON serializable"),
            ("", None, ""),
        ],
    )
    def test_mistakes_are_noticed(self, path, mistake, error, says):
        def make():
            loader = Wrong(path, 100, "full", device="cpu")
            loader.mistake = mistake
            return loader

        with pytest.raises(error, match=says) if mistake else nullcontext():
            assert_resumes_everywhere(make)

    def test_another_order_is_noticed(self, path):
        seeds = iter([1, *[2] * 100])
        with pytest.raises(gdsload.StateError, match="seed differs"):
            assert_resumes_everywhere(lambda: gdsload.DataLoader(path, 100, "full", seed=next(seeds), device="cpu"))
