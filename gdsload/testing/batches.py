"""Comparing batches, and resuming loaders."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from gdsload.loader.loader import DataLoader
from gdsload.shards.values import memory_of


def fingerprint(batch: object) -> str:
    """A hash of a batch's content: equal for two batches if they have the same fields, types, shapes and bytes.

    Args:
        batch: tensors (nested ones, too), arrays, texts and numbers, in any nest of dicts, lists and tuples.
    """
    found = hashlib.sha256()
    for part in _parts(batch):
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()


def _parts(value: object) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        yield from _tensor(value)
    elif isinstance(value, np.ndarray):
        yield f"array {value.dtype} {value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, Mapping):
        yield f"dict {len(value)}".encode()
        for key, item in value.items():
            yield repr(key).encode()
            yield from _parts(item)
    elif isinstance(value, list | tuple):
        yield f"{type(value).__name__} {len(value)}".encode()
        for item in value:
            yield from _parts(item)
    else:
        yield repr(value).encode("utf-8", "backslashreplace")


def _tensor(value: torch.Tensor) -> Iterator[bytes]:
    if value.is_nested:
        jagged: Any = value
        yield b"jagged"
        yield from _tensor(jagged.values())
        yield from _tensor(jagged.offsets())
        return
    yield f"tensor {value.dtype} {tuple(value.shape)}".encode()
    if value.numel():  # the strides of none may be anything
        yield memory_of(value).tobytes()


def assert_resumes_everywhere(
    make_loader: Callable[[], DataLoader], resume_loader: Callable[[], DataLoader] | None = None
) -> None:
    """Run an epoch, and resume it at each of its steps from a state that has been JSON in between.

    Args:
        make_loader: makes the loader that runs the epoch; the same one each time it is called.
        resume_loader: makes the loader that resumes, where it is to have other options (budgets, say); default:
            `make_loader`.

    Raises:
        AssertionError: if a state is no plain JSON, or the rest of a resumed epoch is not the rest of the one that
            ran through, batch by batch, or the state after a batch differs.
    """
    with make_loader() as loader:
        states, announced = [_through_json(loader.state_dict())], len(loader)
        batches = []
        for batch in loader:
            batches.append(fingerprint(batch))
            states.append(_through_json(loader.state_dict()))
        after = _through_json(loader.state_dict())
        following = next((fingerprint(batch) for batch in loader), None)
    assert len(batches) == announced, f"{announced} batches were announced, but {len(batches)} came"
    for step, state in enumerate(states):
        with (resume_loader or make_loader)() as resumed:
            resumed.load_state_dict(state)
            assert _through_json(resumed.state_dict()) == state, f"step {step}: the state changes by being loaded"
            if batches and step == len(batches):  # nothing is left, so that it goes on with the next epoch
                found = next((fingerprint(batch) for batch in resumed), None)
                assert found == following, "resumed at an epoch's end, the next one begins with another batch"
                continue
            for number, batch in enumerate(resumed, step):
                assert number < len(batches), f"resumed at step {step}, there are too many batches"
                assert fingerprint(batch) == batches[number], f"resumed at step {step}, batch {number} is another one"
                assert _through_json(resumed.state_dict()) == states[number + 1], (
                    f"resumed at {step}, the state differs"
                )
                last = number
            assert step == len(batches) or last == len(batches) - 1, f"resumed at step {step}, batches are missing"
            assert _through_json(resumed.state_dict()) == after, f"resumed at step {step}, it ends in another state"


def _through_json(state: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(state))
    assert found == state, f"the state changes on its way through JSON: {state}"
    return found
