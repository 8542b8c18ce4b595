"""What a loader opens."""

from dataclasses import replace

import pytest
import torch

from gdsload import DataLoader, Memory
from gdsload.loader import resources


class ChosenError(Exception):
    """Says what was wished for."""


@pytest.mark.parametrize(("register_bytes", "expected"), [(None, 1000 + 4 * 234), (500, 500)])
def test_shards_in_memory_are_registered_beside_the_budget_for_others(plain, monkeypatch, register_bytes, expected):
    """They take no more memory then than they do anyway; what the user says counts as it is."""

    def choose(request, _files):
        raise ChosenError(request.register_bytes)

    monkeypatch.setattr(resources, "choose", choose)
    monkeypatch.setattr(resources, "default_register_bytes", lambda: 1000)
    monkeypatch.setattr(resources, "bytes_in_memory", lambda sources: 234 * len(sources))
    with DataLoader(plain, 1, memory=Memory(registered=register_bytes)) as loader:
        plan = loader._plan
        on_gpu = replace(
            plan,
            backend=replace(plan.backend, device=torch.device("cuda", 0)),
            registers_by_default=register_bytes is None,
        )
        with pytest.raises(ChosenError) as raised:
            resources.open_resources(on_gpu, loader._life.limits)
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
