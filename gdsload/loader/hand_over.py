"""What is done with each batch in the consumer's thread: to its device, what is left of transforms, buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gdsload.engine.transform import DeviceTransform
from gdsload.loader.buffers import Buffers
from gdsload.loader.plan import LoaderPlan
from gdsload.loader.state import Place

__all__ = ["hand_over_steps"]


def hand_over_steps(
    plan: LoaderPlan, device_transform: DeviceTransform | None
) -> Callable[[Any, Place, int], Any] | None:
    """What each batch goes through; None if there is nothing to be done.

    Args:
        plan: the loader's.
        device_transform: what calls the user's, here where torch copies batches to their device; else it has been
            called ahead.

    Returns:
        It takes the batch, its place, and its number of samples.
    """
    buffers = Buffers(plan.schedule.batch_size) if plan.reuse_buffers else None

    def finish(batch: Any, place: Place, size: int) -> Any:
        if plan.copies:
            batch = {name: _moved(value, plan.device) if name != "index" else value for name, value in batch.items()}
            if device_transform is not None:
                batch = device_transform(place.epoch, place.step, batch)
        if plan.transform is not None:
            batch = plan.transform(batch)
        return batch if buffers is None else buffers(batch, size)

    return finish if plan.copies or plan.transform is not None or buffers is not None else None


def _moved(value: Any, device: torch.device) -> Any:
    """A field of a host batch on the device; texts stay."""
    if isinstance(value, tuple):
        return tuple(part.to(device) for part in value)
    return value if isinstance(value, list) else value.to(device)
