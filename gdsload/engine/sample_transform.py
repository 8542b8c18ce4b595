"""The user's transforms of single samples: done by threads or processes, ahead of the consumer, and put together again.

    a batch's fields ──> samples ──> chunks ──crew──> results ──> collate_fn, or torch's default_collate

Each sample's random numbers follow from its place in the epoch alone, so neither the crew nor its size changes a
result. In threads, torch's functions that draw random numbers do so from a generator of the sample's own: torch's
global one is the training's, too. In processes all global generators are a sample's own, and are seeded for it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode
from torch.utils.data import default_collate

from gdsload.backends.choices import check_threads
from gdsload.engine.gpu.plain_tensors import tensors_of
from gdsload.errors import LoaderClosedError, OptionError, ReadError
from gdsload.shards.gather_host import limit_threads
from gdsload.shards.values import memory_of
from gdsload.system.crew import Crew, Outcome, Work, pickled
from gdsload.system.share import processors
from gdsload.transforms import Compose
from gdsload.transforms.compose import callables

INDEX = "gdsload:index"
"""The key under which a batch carries its samples' indices where the user does not ask for them: for errors."""
_WORK = Work("gdsload-sample", "sample_transform", "load", "processes=False")
_CHUNKS_EACH = 2
"""Pieces of a batch for each worker: samples take differently long, and a piece costs a process some 100 µs."""
_PROTOCOL = 5  # of pickle: arrays without a copy
_DRAWS = frozenset({
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli",
    "multinomial", "poisson", "binomial", "uniform_", "normal_", "random_", "exponential_", "geometric_", "log_normal_",
    "cauchy_", "bernoulli_", "_standard_gamma", "_sample_dirichlet",
})  # fmt: skip
"""Names of torch's functions that take a generator."""
_OF_A_BATCH = 0x9E3779B97F4A7C15
"""Is added to a sample's key, bit by bit, for what is drawn for its batch."""
_NOT_COLLATED = (
    "what sample_transform has made of the samples of a batch cannot be put together: let it return tensors of one "
    "shape, numbers or texts, in dicts or tuples of one structure"
)

Sample = dict[str, Any]
_Chunk = tuple[list[Sample], list[int], list[int]]
"""Samples, the keys of their random numbers, and their indices in the dataset."""


@dataclass(frozen=True, slots=True)
class PerSample:
    """Transforms of single samples, for `sample_transform=`, with the number and kind of their workers.

    Attributes:
        transform: called with each sample: a function, or several in a list, one after the other.
        workers: how many threads or processes call it, 512 at most. None: as many as there are processors, or this
            rank's share of them where torchrun has started several on the host.
        processes: whether they are processes: for transforms that hold the interpreter lock, or that draw from numpy's
            or Python's global generators. They must be picklable. Each process imports torch again.

    Raises:
        OptionError: if one cannot be used.
    """

    transform: Callable[..., Any] | Sequence[Callable[..., Any]]
    workers: int | None = None
    processes: bool = False

    def __post_init__(self) -> None:
        if not self.transforms:
            raise OptionError("has no transform", option="PerSample", remedy="Leave `sample_transform` out.")
        if self.workers == 0:
            raise OptionError(
                "is 0",
                option="workers",
                remedy="Pass `ahead=False` to the loader: the thread that asks for a batch makes it.",
            )
        check_threads(self.workers, "workers")
        if self.processes:
            self.payload()

    @property
    def transforms(self) -> tuple[Callable[..., Any], ...]:
        """The transforms, one after the other."""
        return callables(self.transform, "sample_transform")

    def payload(self) -> bytes:
        """The transforms as a worker process gets them.

        Raises:
            OptionError: if they cannot be sent to another process.
        """
        return pickled(Compose(self.transforms), _WORK)


class SampleTransform:
    """Calls transforms with the samples of batches; several threads may call it at once.

    Args:
        keys: of an epoch's step with so many samples, the seed of each sample's random numbers.
        collate: makes a batch of the results; None: torch's `default_collate`.
        ahead: whether workers call the transforms; else the thread that makes the batch does.
    """

    def __init__(
        self,
        per_sample: PerSample,
        keys: Callable[[int, int, int], list[int]],
        *,
        index: str,
        collate: Callable[[list[Any]], Any] | None = None,
        ahead: bool = True,
    ) -> None:
        self._keys, self._index, self._collate = keys, index, collate
        workers = (per_sample.workers or processors()) if ahead else 0
        self._crew = Crew(_WORK, workers, processes=per_sample.processes)
        # It refers to no transform: one may refer to the loader, which then would not be dropped: see `Closer`.
        self.close = self._crew.end
        """Ends threads and processes; may be called twice."""
        self._pieces = max(workers * _CHUNKS_EACH, 1)
        self._at_once = not ahead
        self._inside: int | None = None  # the thread that calls transforms at once
        here = _in_this_thread if self._at_once else _in_thread
        self._call: Callable[..., Any] = partial(here, Compose(per_sample.transforms), self._crew.stopped)
        if per_sample.processes:
            self._call = partial(_in_process, per_sample.payload())
        self._packed = per_sample.processes
        self._largest = 0

    def __call__(self, epoch: int, step: int, batch: Mapping[str, Any]) -> Any:
        """Transform each sample of a step's batch, and return the batch of the results.

        Raises:
            Exception: what the transforms raise for the first sample that they do so for, with a note that names it.
            LoaderClosedError: if it is closed meanwhile.
        """
        samples, indices = _samples(batch, self._index)
        if not samples and self._collate is None:
            return {name: value for name, value in batch.items() if name != INDEX}
        keys, size = self._keys(epoch, step, len(samples)), max(-(-len(samples) // self._pieces), 1)
        pieces = [slice(begin, begin + size) for begin in range(0, len(samples), size)]
        try:
            results = self._done([(samples[piece], keys[piece], indices[piece]) for piece in pieces])
            made = _collated(self._collate, results, keys)
        except Exception as error:
            _note(error, f"in the batch of step {step} of epoch {epoch}")
            raise
        self._largest = max(self._largest, sum(tensor.nbytes for tensor in tensors_of(made)))
        return made

    def grown(self) -> int:
        """Bytes of the largest batch that was made so far."""
        return self._largest

    def refuse_inside(self) -> None:
        """Refuse what waits for transforms to end if a transform asks for it.

        Raises:
            RuntimeError: if the calling thread is one that does them.
        """
        if self._crew.inside() or self._inside == threading.get_ident():
            raise RuntimeError("a sample_transform began an epoch of its loader, and would wait for its own end")

    def _done(self, chunks: list[_Chunk]) -> list[Any]:
        if self._at_once:
            self._inside = threading.get_ident()
            try:
                return [result for chunk in chunks for result in self._call(chunk)]
            finally:
                self._inside = None
        arguments = [(_packed(chunk) if self._packed else chunk,) for chunk in chunks]
        return [result for found in self._crew.results(self._call, arguments) for result in self._result(found)]

    def _result(self, outcome: Outcome) -> list[Any]:
        try:
            found = outcome()
        except BrokenExecutor as error:
            if self._crew.stopped():
                raise LoaderClosedError("the loader was closed while samples were transformed") from None
            raise ReadError(
                f"a worker process of sample_transform was lost: {error}",
                remedy="If it was killed, memory may have run out: lower `PerSample(workers=...)`.",
            ) from error
        results: list[Any] = ForkingPickler.loads(found) if self._packed else found
        return results


def _samples(batch: Mapping[str, Any], index: str) -> tuple[list[Sample], list[int]]:
    """The samples of a batch, as a dataset gives them, and their indices."""
    indices: list[int] = batch[index].tolist()
    fields = {name: indices if name == index else _parts(value) for name, value in batch.items() if name != INDEX}
    return [dict(zip(fields, values, strict=True)) for values in zip(*fields.values(), strict=True)], indices


def _parts(value: Any) -> Sequence[Any]:
    """A field of each sample of a batch."""
    if isinstance(value, list):
        return value
    if isinstance(value, tuple):
        values, edges = value[0], value[1].tolist()
        return [values[begin:end] for begin, end in pairwise(edges)]
    parts: Sequence[Any] = value.unbind()
    return parts


def _collated(collate: Callable[[list[Any]], Any] | None, results: list[Any], keys: list[int]) -> Any:
    """The batch of some results. The random numbers of a user's function follow from the batch's first sample."""
    try:
        if collate is None:
            return default_collate(results)
        with torch.no_grad(), _DrawsFrom(torch.Generator().manual_seed(keys[0] ^ _OF_A_BATCH if keys else _OF_A_BATCH)):
            return collate(results)
    except Exception as error:
        _note(error, _NOT_COLLATED if collate is None else f"in collate_fn, for {len(results)} samples")
        if collate is not None and isinstance(error, StopIteration):
            raise RuntimeError("collate_fn raised StopIteration, which would have ended the epoch") from error
        raise


def _in_thread(transform: Compose, stopped: Callable[[], bool], chunk: _Chunk) -> list[Any]:
    """The results of samples, in a worker thread of the process that trains."""
    limit_threads(1)  # from now on: the crew are as many as there are processors
    return _in_this_thread(transform, stopped, chunk)


def _in_this_thread(transform: Compose, stopped: Callable[[], bool], chunk: _Chunk) -> list[Any]:
    def call(sample: Sample, key: int) -> Any:
        if stopped():
            raise LoaderClosedError("the loader was closed while samples were transformed")
        generator = torch.Generator().manual_seed(key)
        with _DrawsFrom(generator):
            return transform(sample, generator)

    return _each(call, chunk)


def _in_process(transform: bytes, chunk: bytes) -> bytes:
    """The results of samples, in a process that does nothing else."""
    found = _unpacked_transform(transform)

    def call(sample: Sample, key: int) -> Any:
        # Not `torch.manual_seed`, which also has CUDA's generators seeded, once there are any.
        generator = torch.default_generator.manual_seed(key)
        random.seed(key)
        # Of the same numbers in the same order numpy would make Python's stream.
        np.random.seed([key >> 32, key & 0xFFFFFFFF])  # noqa: NPY002 - the generator that users' code draws from
        return found(sample, generator)

    return _packed(_each(call, ForkingPickler.loads(chunk)))


@lru_cache(maxsize=4)
def _unpacked_transform(payload: bytes) -> Compose:
    """Once for all batches: it may be large, and have its own state."""
    torch.set_num_threads(1)
    found: Compose = ForkingPickler.loads(payload)
    return found


def _each(call: Callable[[Sample, int], Any], chunk: _Chunk) -> list[Any]:
    results = []
    with torch.no_grad():
        for sample, key, index in zip(*chunk, strict=True):
            try:
                results.append(call(sample, key))
            except StopIteration as error:
                wrong = RuntimeError("sample_transform raised StopIteration, which would have ended the epoch")
                _note(wrong, f"in sample_transform, for sample {index} of the dataset")
                raise wrong from error
            except BaseException as error:
                _note(error, f"in sample_transform, for sample {index} of the dataset")
                raise
    return results


def _note(error: BaseException, text: str) -> None:
    with suppress(Exception):  # some classes of errors take no notes
        error.add_note(text)


class _DrawsFrom(TorchFunctionMode):
    """Has torch's functions draw from a generator where they are given none; in this thread alone."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if getattr(func, "__name__", "") in _DRAWS and given.get("generator") is None and _on_cpu(args, given):
            given = {**given, "generator": self._generator}
        return func(*args, **given)


def _on_cpu(args: tuple[Any, ...], given: Mapping[str, Any]) -> bool:
    device = given.get("device")
    if device is not None:
        return torch.device(device).type == "cpu"
    return all(one.device.type == "cpu" for one in args if isinstance(one, torch.Tensor))


class _Pickler(ForkingPickler):
    """Writes tensors as their bytes.

    torch's own way is a file in shared memory for each: of both a container may have too little.
    """

    def reducer_override(self, value: Any) -> Any:
        """See `pickle.Pickler`."""
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_quantized:
            return NotImplemented
        plain = value.detach().as_subclass(torch.Tensor)
        return _tensor, (memory_of(plain), plain.dtype, tuple(plain.shape))


def _tensor(memory: NDArray[np.uint8], dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(memory).view(dtype).view(shape)


def _packed(value: Any) -> bytes:
    return bytes(_Pickler.dumps(value, _PROTOCOL))
