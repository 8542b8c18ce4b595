"""The resources that a loader opens."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch

from gdsload import DataLoader, Memory
from gdsload.backends.tiers import vram
from gdsload.loader import resources


class ChosenError(Exception):
    """Says what was wished for."""


def opened_with(loader, **changed):
    """The resources that a loader would open if something of its plan were changed."""
    return resources.open_resources(replace(loader._plan, **changed), loader._life.limits)


@pytest.mark.parametrize(("register_bytes", "expected"), [(None, 1000 + 4 * 234), (500, 500)])
def test_shards_in_memory_are_registered_beside_the_budget_for_others(plain, monkeypatch, register_bytes, expected):
    """They take no more memory then than they do anyway; what the user says counts as it is."""

    def choose(request, _files):
        raise ChosenError(request.register_bytes)

    monkeypatch.setattr(resources, "choose", choose)
    monkeypatch.setattr(resources, "default_register_bytes", lambda: 1000)
    monkeypatch.setattr(resources, "bytes_in_memory", lambda sources: 234 * len(sources))
    with DataLoader(plain, 1, memory=Memory(registered=register_bytes)) as loader, pytest.raises(ChosenError) as raised:
        opened_with(loader, registers_by_default=register_bytes is None)
    assert raised.value.args == (expected,)


@pytest.mark.parametrize("error", [KeyboardInterrupt, torch.OutOfMemoryError])
def test_what_was_opened_is_closed_if_the_rest_cannot_be(plain, monkeypatch, error):
    made, closed = resources.choose, []

    def choose(*args):
        chosen = made(*args)
        monkeypatch.setattr(chosen.backend, "close", lambda: closed.append(chosen.backend))
        return chosen

    def refused(*_args):
        raise error

    with DataLoader(plain, 10, device="cpu") as loader:
        with monkeypatch.context() as patch:
            patch.setattr(resources, "choose", choose)
            patch.setattr(resources, "Assembler", refused)
            with pytest.raises(error):
                next(iter(loader))
        assert len(closed) == 1
        assert next(iter(loader))["x"][:, 0].tolist() == list(range(10))


@pytest.mark.parametrize("verify", ["off", "all"])
@pytest.mark.parametrize("in_vram", [False, True])
def test_a_backend_does_not_hold_the_table_that_it_is_closed_after(plain, monkeypatch, verify, in_vram):
    monkeypatch.setattr(vram, "side_stream", lambda _device: None)
    with DataLoader(plain, 1, device="cpu", verify=verify, memory=Memory(vram="1MiB")) as loader:
        opened = opened_with(loader, in_vram=in_vram)
    table, backend = weakref.ref(opened.table), opened.backend
    del opened
    gc.collect()
    assert table() is None
    backend.close()
