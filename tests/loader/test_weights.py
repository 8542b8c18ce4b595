"""`load_file` and `safe_open` give what safetensors' own give, in memory that is the caller's."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import struct
import threading

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gdsload
from gdsload import load_file
from gdsload.loader import tensor_reader
from gdsload.testing import Fault, FaultyBackend

DTYPES = dict(safetensors.torch._TYPES)
EXAMPLES = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
BACKENDS = [
    ("cpu", "auto"),
    *(pytest.param("cuda", name, marks=pytest.mark.cuda) for name in ("auto", "bounce", "mapped", "host")),
]


def write(path, tensors, *, metadata=None, lead=0):
    """A file as another tool may write it: tensors in this order, without alignment, the data anywhere."""
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, (code, shape, raw) in tensors.items():
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode() + b" " * lead
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def drawn(rng, code, shape):
    """A tensor's bytes: any, but for those of booleans."""
    count = int(np.prod(shape, dtype=np.int64)) * DTYPES[code].itemsize
    return code, shape, rng.integers(0, 2 if code == "BOOL" else 256, count, np.uint8).tobytes()


def same(one, other):
    """Whether tensors are equal, bit for bit."""
    if (one.dtype, one.shape) != (other.dtype, other.shape) or not one.numel():
        return (one.dtype, one.shape) == (other.dtype, other.shape)
    plain = [tensor.cpu().clone(memory_format=torch.contiguous_format).view(-1) for tensor in (one, other)]
    return torch.equal(*(tensor.view(torch.uint8) for tensor in plain))


def filled(tensors):
    """The names of those that are not empty: those that are may be anywhere in the order."""
    return [name for name, tensor in tensors.items() if tensor.numel()]


shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@EXAMPLES
@given(st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), shapes), max_size=8), st.integers(0, 9), st.integers())
def test_any_file_is_what_safetensors_makes_of_it(tmp_path, found, lead, seed):
    rng = np.random.default_rng(abs(seed))
    path = write(
        tmp_path / "f", {f"t{at}": drawn(rng, *one) for at, one in enumerate(found)}, metadata={"a": "b"}, lead=lead
    )
    expected, tensors = safetensors.torch.load_file(path), gdsload.load_file(path)
    assert filled(tensors) == filled(expected)
    assert tensors.keys() == expected.keys()
    assert all(same(tensors[name], expected[name]) for name in expected)
    with safetensors.safe_open(path, "pt") as theirs, gdsload.safe_open(path, "pt") as ours:
        assert ours.keys() == theirs.keys()
        assert [name for name in ours.offset_keys() if expected[name].numel()] == filled(expected)
        assert ours.metadata() == theirs.metadata()
        for name in theirs.keys():  # noqa: SIM118  (it is no dict)
            assert same(ours.get_tensor(name), theirs.get_tensor(name))
            slices = ours.get_slice(name), theirs.get_slice(name)
            assert slices[0].get_shape() == slices[1].get_shape()
            assert slices[0].get_dtype() == slices[1].get_dtype()


numbers = st.integers(-7, 7)
indices = st.one_of(
    numbers,
    st.builds(slice, st.none() | numbers, st.none() | numbers, st.none() | st.integers(-1, 4)),
    st.sampled_from([..., None, True, [0, 1], [0]]),
)


@settings(EXAMPLES, max_examples=100)
@given(shapes, indices | st.lists(indices, max_size=5).map(tuple), st.sampled_from(["F32", "U8", "C64", "I16"]))
def test_any_part_is_what_torch_makes_of_the_whole(tmp_path, shape, index, code):
    path = write(tmp_path / "f", {"pad": ("U8", (3,), b"abc"), "t": drawn(np.random.default_rng(0), code, shape)})
    whole = safetensors.torch.load_file(path)["t"]
    try:
        expected, error = whole[index], None
    except (IndexError, ValueError) as caught:
        expected, error = None, caught
    with gdsload.safe_open(path) as file:
        part = file.get_slice("t")
        if error is not None:
            with pytest.raises((IndexError, ValueError), match=r"."):
                part[index]
            return
        found = part[index]
    assert same(found, expected)
    assert found.untyped_storage().nbytes() == found.numel() * found.itemsize
    assert found.is_contiguous()


@pytest.fixture
def large(tmp_path, monkeypatch):
    """Tensors of many pieces and reads, and such of none."""
    monkeypatch.setattr(tensor_reader, "_PIECE_BYTES", 1000)
    monkeypatch.setattr(tensor_reader, "_READ_BYTES", 5000)
    rng = np.random.default_rng(7)
    shapes = {"odd": (3,), "matrix": (301, 77), "none": (0, 5), "one": (), "cube": (31, 17, 9), "long": (40_001,)}
    return write(tmp_path / "f", {name: drawn(rng, "BF16", shape) for name, shape in shapes.items()})


@pytest.mark.parametrize(("device", "backend"), BACKENDS)
def test_tensors_of_many_reads(large, device, backend):
    expected, found = safetensors.torch.load_file(large), gdsload.load_file(large, device, backend=backend)
    assert list(found) == list(expected)
    for name, tensor in found.items():
        assert tensor.device.type == device
        assert same(tensor, expected[name])


@pytest.mark.parametrize(("device", "backend"), BACKENDS)
def test_parts_of_many_runs(large, device, backend):
    whole = safetensors.torch.load_file(large)
    with gdsload.safe_open(large, "pt", device, backend=backend) as file:
        for index in [np.s_[:, 5:70], np.s_[10:300:7, ::3], np.s_[-1], np.s_[:, 3], np.s_[..., :2]]:
            found = file.get_slice("matrix")[index]
            assert found.device.type == device
            assert same(found, whole["matrix"][index])
        assert same(file.get_slice("cube")[2:30, 1:, 4:6], whole["cube"][2:30, 1:, 4:6])


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_are_the_callers_own(large, device):
    """They stay what they are, whatever becomes of the file, and none shares memory with another."""
    expected = {name: tensor.clone() for name, tensor in safetensors.torch.load_file(large).items()}
    with gdsload.safe_open(large, device=device) as file:
        found = file.get_tensors() | {"again": file.get_tensor("long"), "part": file.get_slice("long")[5:9]}
    large.write_bytes(b"x" * large.stat().st_size)
    os.remove(large)
    for name, tensor in found.items():
        wanted = expected["long"] if name == "again" else expected["long"][5:9] if name == "part" else expected[name]
        assert same(tensor, wanted)
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize
    for name in [name for name in found if found[name].numel()]:
        before = {other: tensor.clone() for other, tensor in found.items() if other != name}
        found[name].fill_(1)
        assert all(same(found[other], tensor) for other, tensor in before.items())


def test_they_can_be_trained_and_were_made_in_inference_mode(large):
    with torch.inference_mode():
        tensor = gdsload.load_file(large)["matrix"]
    assert not tensor.is_inference()
    tensor.requires_grad_().float().sum().backward()
    assert same(tensor.grad, torch.ones_like(tensor))


def test_several_files_are_one(tmp_path):
    rng = np.random.default_rng(0)
    names = [write(tmp_path / f"f{at}", {f"w{at}": drawn(rng, "F32", (5, at + 1))}, metadata={str(at): "x"})
             for at in range(3)]  # fmt: skip
    with gdsload.safe_open(names[::-1]) as file:
        assert (file.keys(), file.offset_keys()) == (["w0", "w1", "w2"], ["w2", "w1", "w0"])
        assert file.metadata() == {"0": "x", "1": "x", "2": "x"}
        for at, tensor in file.get_tensors().items():
            assert same(tensor, safetensors.torch.load_file(tmp_path / f"f{at[1]}")[at])
    with pytest.raises(gdsload.FormatError, match="have tensors of one name") as caught:
        gdsload.safe_open([names[0], names[0]])
    assert caught.value.problems[0].field == "w0"


def test_a_shard_is_one_of_them(tmp_path):
    with gdsload.ShardWriter(tmp_path / "d") as writer:
        writer.write_batch({"x": np.arange(12).reshape(4, 3)})
    path = tmp_path / "d" / "shard-00000.safetensors"
    found, expected = gdsload.load_file(path), safetensors.torch.load_file(path)
    assert list(found) == list(expected)
    assert found["x"].tolist() == np.arange(12).reshape(4, 3).tolist()


# --- errors ---


@pytest.fixture
def small(tmp_path):
    return write(tmp_path / "f", {"first": ("U8", (4,), b"abcd"), "second": ("F32", (2, 2), bytes(16))})


def test_what_is_not_there(small, tmp_path):
    with pytest.raises(gdsload.DatasetNotFoundError, match="there is no such file"):
        gdsload.load_file(tmp_path / "none")
    with gdsload.safe_open(small) as file:
        for get in (file.get_tensor, file.get_slice):
            with pytest.raises(gdsload.OptionError, match="there is no tensor 'secnod' .*Similar names are 'second'"):
                get("secnod")
        with pytest.raises(gdsload.OptionError, match=r"there is no tensor 'x' .*`keys\(\)` has the names"):
            file.get_tensor("x")
        for name in (["first"], {}, None, 0):
            with pytest.raises(gdsload.OptionError, match=re.escape(f"there is no tensor {name!r} in")):
                file.get_tensor(name)


@pytest.mark.parametrize(("options", "message"), [
    ({"framework": "numpy"}, "framework is 'numpy'"), ({"device": "meta"}, "device 'meta' cannot be used here"),
    ({"device": "cpus"}, "device 'cpus' cannot be used here"), ({"filename": []}, "there are no files to open"),
    ({"backend": "magic"}, "backend is 'magic'"), ({"filename": b"x"}, "filename is b'x', no path"),
    ({"filename": None}, "filename is None, no path"), ({"filename": 5}, "filename is 5, no path"),
    ({"filename": ""}, "filename names '', which is no path"),
    ({"filename": [b"x"]}, "filename names b'x', which is no path"),
    ({"filename": "a\0b"}, "no file's name has such characters"),
    ({"filename": "\ud800"}, "no file's name has such characters"),
])  # fmt: skip
def test_arguments_that_cannot_be_used(small, options, message):
    with pytest.raises(gdsload.OptionError, match=message):
        gdsload.safe_open(**{"filename": small} | options)


def test_a_backend_that_cannot_be_used(small):
    with pytest.raises(gdsload.BackendUnavailableError, match="backend 'bounce' needs a CUDA device"):
        gdsload.load_file(small, backend="bounce")


def test_closed_files_are_not_read(small):
    file = gdsload.safe_open(small)
    part, tensor = file.get_slice("first"), file.get_tensor("first")
    file.close()
    file.close()
    for read in (lambda: part[0], lambda: file.get_tensor("second"), file.get_tensors):
        with pytest.raises(gdsload.LoaderClosedError, match="the file was closed"):
            read()
    assert file.keys() == ["first", "second"]
    assert bytes(tensor.tolist()) == b"abcd"
    assert part.get_shape() == [4]


def test_a_slice_keeps_its_file_open(small):
    part = gdsload.safe_open(small).get_slice("first")
    assert bytes(part[1:3].tolist()) == b"bc"


@pytest.mark.parametrize("what", ["replaced", "written to", "cut short", "removed"])
def test_a_file_that_changes_between_two_reads(small, what):
    with gdsload.safe_open(small) as file:
        file.get_tensor("first")
        if what == "replaced":
            small.with_suffix(".new").write_bytes(small.read_bytes())
            os.replace(small.with_suffix(".new"), small)
        elif what == "written to":
            os.utime(small, ns=(1, 1))
        elif what == "cut short":
            os.truncate(small, 100)
        else:
            os.remove(small)
        with pytest.raises(gdsload.FileChangedError, match="while the dataset was in use"):
            for _ in range(200):
                file.get_tensor("first")
                threading.Event().wait(0.01)


def test_damaged_and_hostile_files(small):
    """Every file is what it was, or an error that says what is wrong with it."""
    whole, random_bytes = small.read_bytes(), random.Random(3)
    expected = safetensors.torch.load_file(small)
    refused = 0
    for _ in range(400):
        raw = bytearray(whole)
        for _ in range(random_bytes.randrange(1, 4)):
            raw[random_bytes.randrange(len(raw) - 20)] = random_bytes.randrange(256)
        raw = raw[: random_bytes.choice([len(raw), len(raw), random_bytes.randrange(len(raw))])]
        small.write_bytes(raw)
        try:
            found = gdsload.load_file(small)
        except gdsload.FormatError as error:
            assert str(small) in str(error)
            refused += 1
        else:
            assert sum(tensor.nbytes for tensor in found.values()) == sum(one.nbytes for one in expected.values())
    assert refused > 300


@pytest.mark.parametrize("content", [b"", b"1234567", b"\0" * 8, b"\xff" * 100], ids=repr)
def test_what_is_no_safetensors_file(tmp_path, content):
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(gdsload.FormatError, match="no valid safetensors file"):
        gdsload.load_file(tmp_path / "f")


def test_elements_of_less_than_a_byte_are_refused(tmp_path):
    path = write(tmp_path / "f", {"x": ("F4", (2,), b"\0")})
    with pytest.raises(gdsload.FormatError, match="elements that are no whole bytes"):
        gdsload.load_file(path)


def test_an_error_of_one_read_ends_all_and_leaves_nothing_open(large, monkeypatch):
    reads, real = [], tensor_reader.choose

    def choose(*arguments):
        found = real(*arguments)
        return type(found)(Failing(found.backend), found.name, found.reason)

    class Failing(FaultyBackend):
        def __init__(self, inner):
            bad = Fault(lambda: gdsload.ReadError("bad sector"), calls=[9], when="completion")
            super().__init__(inner, bad)

        def read(self, wanted):
            pending = super().read(wanted)
            reads.append(pending)
            return pending

    monkeypatch.setattr(tensor_reader, "choose", choose)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(gdsload.ReadError, match="bad sector"):
        gdsload.load_file(large)
    assert len(reads) >= 10
    assert len(os.listdir("/proc/self/fd")) == before
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("gdsload-weights")]


def test_close_in_the_middle_of_a_read_waits_for_it(large, monkeypatch):
    """Or the memory would be gone that is copied from."""
    file, real, copying = gdsload.safe_open(large), tensor_reader.gather_pieces, threading.Event()

    def slow(*arguments):
        copying.set()
        threading.Event().wait(0.05)
        real(*arguments)

    monkeypatch.setattr(tensor_reader, "gather_pieces", slow)
    expected, found = safetensors.torch.load_file(large), []
    reader = threading.Thread(target=lambda: found.append(file.get_tensors()))
    reader.start()
    assert copying.wait(30)
    file.close()
    reader.join(30)
    assert all(same(found[0][name], expected[name]) for name in expected)


def test_close_by_a_signals_handler_in_the_middle_of_a_read_is_refused(large, monkeypatch):
    file = gdsload.safe_open(large)
    monkeypatch.setattr(tensor_reader, "shares", lambda *_: file.close())
    with pytest.raises(gdsload.LoaderClosedError, match="while a tensor was being read"):
        file.get_tensors()
    monkeypatch.undo()
    assert len(file.get_tensors()) == 6
    file.close()


@pytest.mark.parametrize("part", [0, 3, -1])
def test_a_file_that_changes_in_the_middle_of_a_read(large, monkeypatch, part):
    """No tensor is handed out that may be half of another file."""
    real, parts = tensor_reader.gather_pieces, []

    def spoil(*arguments):
        real(*arguments)
        parts.append(1)
        if len(parts) == at:
            os.utime(large, ns=(1, 1))

    monkeypatch.setattr(tensor_reader, "gather_pieces", spoil)
    at = 0
    gdsload.load_file(large)
    at = range(1, len(parts) + 1)[part]
    parts.clear()
    with pytest.raises(gdsload.FileChangedError, match="was written to while the dataset was in use"):
        gdsload.load_file(large)
    assert len(parts) >= at


@pytest.mark.parametrize("what", ["get_tensors", "close"])
def test_a_child_that_was_forked_in_the_middle_of_a_read_has_a_reader_of_its_own(large, monkeypatch, what):
    """The lock is held there by a thread that does not exist."""
    file, inside, go = gdsload.safe_open(large), threading.Event(), threading.Event()
    expected, real = file.get_tensors(), tensor_reader.gather_pieces
    parent = os.getpid()

    def slow(*arguments):
        if os.getpid() == parent:
            inside.set()
            assert go.wait(30)
        return real(*arguments)

    monkeypatch.setattr(tensor_reader, "gather_pieces", slow)
    thread = threading.Thread(target=file.get_tensors)
    thread.start()
    assert inside.wait(30)
    child = os.fork()
    if not child:
        signal.alarm(30)
        if what == "close":
            file.close()
        try:
            found = file.get_tensors()
            # By numpy: torch's threads are the parent's, and may be waited for in vain.
            equal = all(
                np.array_equal(found[name].view(torch.int16).numpy(), one.view(torch.int16).numpy())
                for name, one in expected.items()
            )
            os._exit(0 if equal and what == "get_tensors" else 1)
        except gdsload.LoaderClosedError:
            os._exit(0 if what == "close" else 2)
        finally:
            os._exit(3)
    go.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert file.get_tensors().keys() == expected.keys()
    file.close()


def test_an_empty_part_of_a_tensor_of_endless_rows_takes_no_memory(tmp_path):
    header = json.dumps({"z": {"dtype": "F32", "shape": [2**40, 0, 5], "data_offsets": [0, 0]}}).encode()
    (tmp_path / "z.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with gdsload.safe_open(tmp_path / "z.safetensors") as file:
        assert file.get_slice("z")[:, :, 1:2].shape == (2**40, 0, 1)
        assert file.get_tensor("z").shape == (2**40, 0, 5)


def test_every_part_is_made_outside_of_inference_mode(large):
    with torch.inference_mode(), gdsload.safe_open(large) as file:
        part = file.get_slice(file.keys()[0])
        assert not any(part[index].is_inference() for index in (..., slice(None, None, 2), slice(0, 1)))


def test_paths_may_come_from_any_iterable(small):
    for several in (small.parent.glob("f"), {small}, np.array([str(small)])):
        with gdsload.safe_open(several) as file:
            assert file.keys() == ["first", "second"]


def test_a_file_in_a_file_is_not_there(small):
    with pytest.raises(gdsload.DatasetNotFoundError, match="there is no such file"):
        gdsload.load_file(small / "x")


@pytest.mark.cuda
def test_tensors_are_not_made_where_another_stream_still_works(tmp_path, device):
    """Their memory is of the caller's stream: what is pending on another one neither reads nor writes it."""
    values = torch.arange(2**25, dtype=torch.float32)
    safetensors.torch.save_file({"x": values}, tmp_path / "x.safetensors")
    for side, reused in ((torch.cuda.default_stream(device), True), (torch.cuda.Stream(device), False)):
        for _ in range(2):  # the first time takes long, before tensors are made
            before = torch.empty_like(values, device=device)
            torch.cuda.synchronize()
            torch.cuda._sleep(2_000_000_000)
            before.fill_(9)
            address = before.data_ptr()
            del before
            with torch.cuda.stream(side):
                found = load_file(tmp_path / "x.safetensors", device=device)["x"]
            torch.cuda.synchronize()
            assert torch.equal(found.cpu(), values)
            assert (found.data_ptr() == address) == reused
            del found
