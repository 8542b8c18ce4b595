"""The user's transforms of whole batches: called ahead of the consumer, with reproducible random numbers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import torch

from gdsload.kernels.fused_transforms import fuse
from gdsload.transforms import Compose


class DeviceTransform:
    """Calls transforms, one batch at a time, with the same settings of torch in every thread."""

    def __init__(
        self, transforms: Sequence[Callable[..., Any]], device: torch.device, key: Callable[[int, int], int]
    ) -> None:
        steps = fuse(transforms) if device.type == "cuda" else transforms
        self._apply, self._device, self._key = Compose(steps), device, key
        self._lock = threading.RLock()
        self._inside: int | None = None

    def __call__(self, epoch: int, step: int, batch: Any) -> Any:
        """Apply the transforms to the batch of a step.

        Raises:
            Exception: what a transform raises, with a note that names step and epoch.
        """
        generator = None
        if self._apply.random:
            generator = torch.Generator(self._device).manual_seed(self._key(epoch, step))
        with self._lock, self._settings():
            self._inside = threading.get_ident()
            try:
                return self._apply(batch, generator)
            except StopIteration as error:
                wrong = RuntimeError("device_transform raised StopIteration, which would have ended the epoch")
                wrong.add_note(_place(epoch, step))
                raise wrong from error
            except BaseException as error:
                with suppress(Exception):  # some classes of errors take no notes
                    error.add_note(_place(epoch, step))
                raise
            finally:
                self._inside = None

    def refuse_inside(self) -> None:
        """Refuse what waits for transforms to end if a transform asks for it.

        Raises:
            RuntimeError: if the calling thread is inside a transform.
        """
        if self._inside == threading.get_ident():
            raise RuntimeError(
                "a device_transform closed its loader, began an epoch of it or set its place, "
                "and would have to wait for its own end"
            )

    def _settings(self) -> ExitStack:
        """Torch's settings for a transform. The consumer's own must not matter: its thread may make batches, too."""
        stack = ExitStack()
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.no_grad())
        if torch.amp.is_autocast_available(self._device.type):
            stack.enter_context(torch.autocast(self._device.type, enabled=False))
        if torch.get_default_device().type != "cpu":  # `torch.set_default_device` holds for the thread that called it
            stack.enter_context(torch.device("cpu"))
        return stack


def _place(epoch: int, step: int) -> str:
    return f"in device_transform, for the batch of step {step} of epoch {epoch}"
