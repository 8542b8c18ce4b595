"""CUDA's driver as a library that answers with codes."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gdsload.system import driver as driver_module
from gdsload.system.driver import Driver, driver


class Call:
    """A function of the library."""

    def __init__(self, code):
        self.code, self.seen, self.argtypes = code, [], None

    def __call__(self, *arguments):
        self.seen.append(arguments)
        return self.code


class Library:
    """Has every call but the one that queues many copies."""

    def __init__(self, codes):
        self.codes = codes

    def __getattr__(self, name):
        if "Batch" in name:
            raise AttributeError(name)
        setattr(self, name, Call(self.codes.get(name, 0)))
        return getattr(self, name)


def library(**codes):
    found = Library(codes)

    def text(code, place):
        ctypes.cast(place, ctypes.POINTER(ctypes.c_char_p))[0] = f"text of {code}".encode()
        return 0

    text.argtypes = None
    found.cuGetErrorString = text
    return found


@pytest.mark.parametrize(
    ("name", "call", "handed_on"),
    [
        ("cuMemcpyHtoDAsync_v2", lambda calls: calls.copy(1, 2, 3, 4), (1, 2, 3, 4)),
        ("cuMemcpyAsync", lambda calls: calls.copy_any(1, 2, 3, 4), (1, 2, 3, 4)),
        ("cuEventRecord", lambda calls: calls.record(1, 2), (1, 2)),
        ("cuEventQuery", lambda calls: calls.is_past(1), (1,)),
        ("cuCtxSetCurrent", lambda calls: calls.enter(1), (1,)),
        ("cuStreamGetCtx", lambda calls: calls.context(SimpleNamespace(cuda_stream=1)), (1,)),
    ],
)
def test_arguments_go_on_in_the_driver_s_order_and_a_code_is_an_error_with_its_text(name, call, handed_on):
    found = library()
    call(Driver(found))
    assert [arguments[: len(handed_on)] for arguments in getattr(found, name).seen] == [handed_on]
    with pytest.raises(RuntimeError, match=rf"^{name}: text of 700 \(700\)$"):
        call(Driver(library(**{name: 700})))


@pytest.mark.parametrize(("name", "failed"), [("cuMemcpyBatchAsync_v2", 0), ("cuMemcpyBatchAsync", 1)])
def test_many_copies_by_one_call(name, failed):
    """Three arrays, their length, attributes for all copies from the first on, and the stream."""
    found = library()
    setattr(found, name, Call(0))
    calls, arrays = Driver(found), [np.array([low, low + 1]) for low in (10, 20, 30)]
    assert calls.copies_many
    assert calls.copy_many(*arrays, 7)
    (arguments,) = getattr(found, name).seen
    assert len(arguments) == 8 + failed
    assert [argument.value for argument in arguments[:4]] == [*(array.ctypes.data for array in arrays), 2]
    assert [arguments[4]._obj.order, arguments[5]._obj.value, arguments[6].value] == [1, 0, 1]
    assert ctypes.sizeof(arguments[4]._obj) == 24
    assert arguments[-1].value == 7


@pytest.mark.parametrize(("count", "expected"), [(256, [256]), (257, [256, 1]), (700, [256, 256, 188])])
def test_very_many_copies_by_several_calls(count, expected):
    """Each queues those after the last one's, and a call that is refused leaves all of them to others."""
    found, arrays = library(), [np.arange(count) + low for low in (0, 10_000, 20_000)]
    found.cuMemcpyBatchAsync_v2 = Call(0)
    assert Driver(found).copy_many(*arrays, 7)
    seen = found.cuMemcpyBatchAsync_v2.seen
    assert [arguments[3].value for arguments in seen] == expected
    for place, array in enumerate(arrays):
        parts = [
            np.ctypeslib.as_array(ctypes.cast(arguments[place], ctypes.POINTER(ctypes.c_int64)), (arguments[3].value,))
            for arguments in seen
        ]
        assert np.array_equal(np.concatenate(parts), array)
    codes = iter([0] * (len(expected) - 1) + [801])
    found.cuMemcpyBatchAsync_v2 = lambda *_arguments: next(codes)
    assert not Driver(found).copy_many(*arrays, 7)


def test_many_copies_are_left_to_others_where_they_cannot_be_queued(caplog):
    arrays = [np.zeros(2, np.int64)] * 3
    assert not Driver(library()).copies_many
    assert not Driver(library()).copy_many(*arrays, 7)
    found = library()
    found.cuMemcpyBatchAsync_v2 = Call(801)
    calls = Driver(found)
    assert not calls.copy_many(*arrays, 0), "the legacy default stream is not for it"
    assert calls.copies_many
    with caplog.at_level("WARNING", "gdsload"):
        assert [calls.copy_many(*arrays, 7) for _ in range(3)] == [False] * 3
    assert len(found.cuMemcpyBatchAsync_v2.seen) == 1
    assert not calls.copies_many
    assert "cuMemcpyBatchAsync_v2: text of 801 (801)" in caplog.text


class Contexts:
    """A thread's stack of contexts."""

    def __init__(self, *contexts):
        self.stack = list(contexts)
        self.found = library()
        self.found.cuDevicePrimaryCtxRetain = lambda place, device: self.tell(place, 100 + device)
        self.found.cuCtxGetCurrent = lambda place: self.tell(place, self.stack[-1] if self.stack else None)
        self.found.cuCtxPushCurrent_v2 = lambda context: self.stack.append(context) or 0
        self.found.cuCtxPopCurrent_v2 = lambda place: self.tell(place, self.stack.pop())
        self.found.cuCtxSetCurrent = lambda context: self.stack.__setitem__(slice(-1, None), [context]) or 0

    def tell(self, place, value):
        place._obj.value = value
        return 0


@pytest.mark.parametrize(
    ("before", "inside", "after"),
    [
        ([], [101], [101]),
        ([7, 101], [7, 101], [7, 101]),
        ([7], [7, 101], [7]),
        ([101, 100], [101, 100, 101], [101, 100]),
    ],
    ids=["none", "torch's", "the user's", "another device's"],
)
def test_a_device_s_context_and_what_comes_back(before, inside, after):
    contexts = Contexts(*before)
    calls = Driver(contexts.found)
    for _ in range(2):
        with calls.inside(1):
            assert contexts.stack == inside
        assert contexts.stack == after
    with pytest.raises(ZeroDivisionError), calls.inside(1):
        1 / 0  # noqa: B018
    assert contexts.stack == after


class Launches(Call):
    """The launch: grid, structure, stream, and attributes as numbers with the domains they map to."""

    def __call__(self, config, function, params, extra):
        found = config._obj
        attributes = [(found.attributes[i].id, *found.attributes[i].value[:2]) for i in range(found.count)]
        grid = (tuple(found.blocks), tuple(found.threads), found.shared_bytes)
        self.seen.append((function, grid, params._obj.value, found.stream, attributes, extra))
        return self.code if attributes else 0


def with_domains(count, code=0, refusal=0):
    found = library()
    asked = []

    def attribute(place, number, device):
        asked.append((number, device))
        if not code:
            place._obj.value = count
        return code

    found.cuDeviceGetAttribute, found.cuLaunchKernelEx = attribute, Launches(refusal)
    return Driver(found), found.cuLaunchKernelEx.seen, asked


def test_what_the_driver_s_structures_measure():
    """CUlaunchConfig and CUlaunchAttribute, as cuda.h has them on 64-bit systems."""
    found = library()
    Driver(found)
    launch = found.cuLaunchKernelEx.argtypes[0]._type_
    attribute = type(launch().attributes)._type_
    assert [ctypes.sizeof(launch), ctypes.sizeof(attribute)] == [56, 72]
    assert [getattr(launch, name).offset for name in ("stream", "attributes", "count")] == [32, 40, 48]
    assert attribute.value.offset == 8


def test_a_kernel_that_reads_host_memory_has_the_third_domain():
    calls, launched, asked = with_domains(4)
    calls.launch(11, (3, 64), 500, 7, own_sync_domain=1)
    calls.launch(12, (2, 32), 600, 0, own_sync_domain=1)
    calls.launch(13, (1, 32), 700, 7)
    assert launched == [
        (11, ((3, 1, 1), (64, 1, 1), 0), 500, 7, [(9, 2, 1)], None),
        (12, ((2, 1, 1), (32, 1, 1), 0), 600, None, [(9, 2, 1)], None),
        (13, ((1, 1, 1), (32, 1, 1), 0), 700, 7, [], None),
    ]
    assert asked == [(126, 1)]


@pytest.mark.parametrize(("count", "code"), [(1, 0), (2, 0), (4, 1)], ids=["one", "two", "an older driver"])
def test_without_a_third_domain_kernels_share_one(count, code):
    calls, launched, asked = with_domains(count, code)
    for _ in range(2):
        calls.launch(11, (3, 64), 500, 7, own_sync_domain=0)
    assert [attributes for *_, attributes, _ in launched] == [[], []]
    assert asked == [(126, 0)]


def test_a_kernel_that_cannot_be_launched_is_an_error():
    calls, launched, _ = with_domains(4, refusal=700)
    with pytest.raises(RuntimeError, match=r"^cuLaunchKernelEx: text of 700 \(700\)$"):
        calls.launch(11, (3, 64), 500, 7, own_sync_domain=0)
    assert len(launched) == 1


def library_that_is_missing(_name):
    raise OSError("cannot open shared object file")


@pytest.mark.parametrize(
    ("version", "opened", "kind"),
    [
        ("13.0", lambda _name: library(), Driver),
        (None, lambda _name: library(), type(None)),
        ("13.0", library_that_is_missing, type(None)),
        ("13.0", lambda _name: SimpleNamespace(), type(None)),
    ],
    ids=["CUDA", "ROCm", "no driver", "an older one"],
)
def test_there_is_one_or_none_where_it_cannot_be_called(version, opened, kind, monkeypatch, request):
    driver.cache_clear()
    request.addfinalizer(driver.cache_clear)
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.setattr(driver_module.ctypes, "CDLL", opened)
    assert isinstance(driver(), kind)
    assert driver() is driver()


@pytest.mark.parametrize(("count", "code", "shares"), [(1, 0, True), (0, 0, False), (1, 1, False)])
def test_page_tables_that_a_device_shares_with_the_cpu(count, code, shares):
    found, _, asked = with_domains(count, code)
    assert found.shares_page_tables(3) is shares
    assert asked == [(100, 3)]
