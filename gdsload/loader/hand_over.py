"""The last steps of each batch, in the consumer's thread: remaining copies and transforms, and buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch

from gdsload.engine.assemble import BatchForm
from gdsload.engine.gpu.plain_tensors import each_tensor
from gdsload.engine.transform import DeviceTransform
from gdsload.errors import OptionError
from gdsload.loader.plan import LoaderPlan
from gdsload.loader.state import Place

_FORMATS = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)


def hand_over_steps(
    plan: LoaderPlan, device_transform: DeviceTransform | None
) -> Callable[[Any, Place, int], Any] | None:
    """The function that each batch goes through in the consumer's thread; None if there is nothing to be done.

    It takes the batch, its place, and its number of samples. Batches that are not copied to their device here have gone
    through `device_transform` already, ahead of the consumer.
    """
    options, names = plan.options, plan.options.tuple_names
    buffers = Buffers(plan.schedule.batch_size) if options.reuse_buffers else None

    def finish(batch: Any, place: Place, size: int) -> Any:
        if plan.copies:
            # Each copy is waited for: else MPS would read memory that was freed and is used again.
            batch = on_device(batch, plan.form, lambda tensor: tensor.to(plan.device))
            if device_transform is not None:
                batch = device_transform(place.epoch, place.step, batch)
        if options.with_real:
            _add_real(batch, place, size, plan.device)
        if options.transform is not None:
            batch = options.transform(batch)
        if names:
            batch = as_tuple(batch, names)
        return batch if buffers is None else buffers(batch, size)

    needed = plan.copies or options.transform is not None or options.with_real or names or options.reuse_buffers
    return finish if needed else None


def on_device(batch: Any, form: BatchForm, copy: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A batch from CPU memory, copied to its device; indices and masks of decoded images stay on the CPU."""
    if not isinstance(batch, dict):
        return each_tensor(batch, copy)
    stays = form.index, *(f"{name}.decoded" for name in form.decode)
    return {name: value if name in stays else each_tensor(value, copy) for name, value in batch.items()}


def as_tuple(batch: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    """Some fields of a batch; OptionError if transforms have made it no mapping, or one without such a field."""
    if not isinstance(batch, Mapping):
        raise OptionError(
            f"is {names!r}, but the transforms made a {type(batch).__name__} of the batch",
            option="as_tuple",
            remedy="Let them return a dict, or leave `as_tuple` out.",
        )
    for name in names:
        if name not in batch:
            listed = f"It has {', '.join(map(repr, batch))}."
            raise OptionError(f"names {name!r}, which is not in the batch", option="as_tuple", remedy=listed)
    return tuple(batch[name] for name in names)


def _add_real(batch: Any, place: Place, size: int, device: torch.device) -> None:
    """Add the mask of the samples that count; OptionError if a `device_transform` has made no mutable mapping."""
    if not isinstance(batch, MutableMapping):
        raise OptionError(
            f"adds 'real' to each batch, but `device_transform` returned a {type(batch).__name__}",
            option="with_real",
            remedy="Let it return a dict, or take `loader.real_samples`.",
        )
    counted = place.schedule.counted(place.step, size)
    batch["real"] = real = torch.zeros(size, dtype=torch.bool, device=device)
    real[counted.start : counted.stop] = True


class Buffers:
    """Copies each batch into tensors that are made for the first one; used by one thread at a time.

    The tensors stay where they are, for work that was recorded with their addresses. A batch is a tensor, or dicts,
    tuples and lists of such, of one structure. If a tensor has fewer rows than its buffer, as in a last batch, the
    first rows of the buffer are handed out. A buffer's first dimension is `rows` at least, the samples of a full batch.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._buffers: dict[str, torch.Tensor] = {}
        self._filled: set[str] = set()
        self._complete = False
        self._samples = rows

    def __call__(self, batch: Any, samples: int) -> Any:
        """The batch of so many samples in the buffers, copied on the current stream; valid until the next one is.

        Raises OptionError if a part is no tensor, is missing, or does not fit the buffer that the first batch's had.
        """
        self._filled.clear()
        self._samples = samples
        # Not an inference tensor: those can be filled in inference mode alone.
        with torch.inference_mode(mode=False), torch.no_grad():
            copied = self._copied(batch, "batch")
        if missing := sorted(self._buffers.keys() - self._filled):
            raise OptionError(
                f"is True, but there is no {missing[0]}, which the first batch had", option="reuse_buffers"
            )
        self._complete = True
        return copied

    def _copied(self, value: Any, where: str) -> Any:
        if isinstance(value, dict):
            return {key: self._copied(part, f"{where}[{key!r}]") for key, part in value.items()}
        if isinstance(value, list | tuple):
            parts = [self._copied(part, f"{where}[{number}]") for number, part in enumerate(value)]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_nested:
            kind = f"tensor of layout {value.layout}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise OptionError(
                f"is True, but {where} is a {kind}",
                option="reuse_buffers",
                remedy="Let transforms return dicts, tuples and lists of plain tensors of a fixed shape.",
            )
        buffer = self._buffer(value, where)
        self._filled.add(where)
        part = buffer[: len(value)] if value.dim() else buffer.view(())
        return part.copy_(value)

    def _buffer(self, value: torch.Tensor, where: str) -> torch.Tensor:
        """The buffer for a part of the batch; of the first batch, a new one."""
        buffer = self._buffers.get(where)
        if buffer is None and not self._complete:
            buffer = self._buffers[where] = self._made_for(value)
        if buffer is None:
            raise OptionError(f"is True, but {where} is new: the first batch had no such part", option="reuse_buffers")
        if (
            (value.dtype, value.device, value.shape[1:]) != (buffer.dtype, buffer.device, buffer.shape[1:])
            or value.dim() != buffer.dim()
            or value.shape[:1] > buffer.shape[:1]
        ):
            raise OptionError(
                f"is True, but {where} is {_described(value)}, which does not fit its buffer, {_described(buffer)}",
                option="reuse_buffers",
                remedy="Give all batches one shape, but for their number of samples. A `batch_sampler` may say that "
                "number in an attribute `batch_size`.",
            )
        return buffer

    def _made_for(self, value: torch.Tensor) -> torch.Tensor:
        """A buffer laid out as the tensor is, if that is one of torch's memory formats."""
        shape = (self._rows_for(len(value)), *value.shape[1:]) if value.dim() else ()
        layout = next((one for one in _FORMATS if value.is_contiguous(memory_format=one)), torch.contiguous_format)
        return torch.empty(shape, dtype=value.dtype, device=value.device, memory_format=layout)

    def _rows_for(self, rows: int) -> int:
        """First dimension of a buffer for a tensor that has `rows` in this batch: as many for each sample."""
        # The first batch may be the last one of a resumed epoch, which is not full.
        each, odd = divmod(rows, self._samples) if self._samples else (1, 0)
        return max(rows, self._rows if odd else self._rows * max(each, 1))


def _described(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
