"""The hash of batches that peers compare. Several of them do in `test_rank_groups.py`."""

import copy

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

import gdsload
from gdsload.errors import LoaderClosedError
from gdsload.loader import peer_check
from gdsload.loader.peer_check import batch_digest


def jagged(*lengths):
    """Not while tests are collected: the first one imports much of torch."""
    return torch.nested.nested_tensor([torch.ones(length) for length in lengths], layout=torch.jagged)


def batch():
    return {
        "float": torch.arange(6.0).view(2, 3), "bf16": torch.ones(2, dtype=torch.bfloat16), "scalar": torch.tensor(3),
        "none": torch.zeros(0, 4), "fp8": torch.ones(3).to(torch.float8_e4m3fn), "jagged": jagged(2, 3),
        "pair": (torch.ones(2), [torch.zeros(1)]), "text": ["a", "b"], "bytes": b"ab", "number": 1.5,
        "array": np.arange(4), "nothing": None,
    }  # fmt: skip


CHANGES = {
    "float": torch.arange(6.0).view(3, 2), "bf16": torch.ones(2, dtype=torch.float16), "scalar": torch.tensor(4),
    "none": torch.zeros(0, 5), "fp8": torch.zeros(3).to(torch.float8_e4m3fn),
    "jagged": lambda: jagged(3, 2),
    "pair": (torch.ones(2), [torch.ones(1)]), "text": ["ab", ""], "bytes": b"ba", "number": 1.25,
    "array": np.arange(4)[::-1], "nothing": 0,
}  # fmt: skip


def test_equal_batches_have_one_hash():
    assert batch_digest(batch()) == batch_digest(batch())
    strided = {**batch(), "float": torch.arange(6.0).view(2, 3).T.contiguous().T}
    assert batch_digest(strided) == batch_digest(batch())


@settings(derandomize=True)
@given(
    st.sampled_from([torch.uint8, torch.int16, torch.float32, torch.bfloat16, torch.complex64]),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=3), st.booleans(),
)  # fmt: skip
def test_numbers_count_and_not_how_they_lie_in_memory(dtype, axes, conj):
    """A vector of one element is contiguous for torch with any stride, and has no view of its bytes then."""
    sizes, strides = [size for size, _ in axes], [stride for _, stride in axes]
    tensor = torch.arange(40).to(dtype).as_strided(sizes, strides, 3)
    tensor = tensor.conj() if conj else tensor
    assert batch_digest(tensor) == batch_digest(torch.tensor(tensor.tolist(), dtype=dtype).view(sizes))


@pytest.mark.parametrize("name", CHANGES)
def test_any_difference_shows(name):
    changed = CHANGES[name]() if name == "jagged" else CHANGES[name]
    assert batch_digest({**batch(), name: changed}) != batch_digest(batch())


def test_names_and_kinds_of_containers_show():
    renamed = batch()
    renamed["double"] = renamed.pop("float")
    assert batch_digest(renamed) != batch_digest(batch())
    assert batch_digest((1, 2)) != batch_digest([1, 2])
    assert batch_digest([[1], [2]]) != batch_digest([[1, 2], []])


def test_a_batch_is_left_as_it_is():
    given = batch()
    before = copy.copy(given)
    batch_digest(given)
    assert all(given[name] is before[name] for name in before)


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.device_mesh.init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    dist.destroy_process_group()


@pytest.mark.parametrize("error", [RuntimeError("Connection closed by peer"), KeyboardInterrupt(), SystemExit()])
@pytest.mark.parametrize("failing", range(1, 6))
def test_a_batch_that_could_not_be_compared_comes_again(plain, mesh, monkeypatch, failing, error):
    """What comes between ends the epoch before the batch that was about to be handed out, whichever that is."""

    def load():
        return gdsload.DataLoader(
            plain, 200, "full", device="cpu", ranks=mesh, verify=gdsload.Verify("off", peers=True)
        )

    with load() as loader:
        whole = [batch["x"].tolist() for batch in loader]
    real, left = peer_check.gather_texts, iter(range(1, failing))

    def gather(*arguments):
        if next(left, None) is None:
            raise error
        return real(*arguments)

    found = []
    with load() as loader:
        with monkeypatch.context() as patch:
            patch.setattr(peer_check, "gather_texts", gather)
            epoch = iter(loader)
            with pytest.raises(type(error)):
                found.extend(batch["x"].tolist() for batch in epoch)
        again, match = (
            (RuntimeError, "Connection closed") if isinstance(error, Exception) else (LoaderClosedError, "ended with")
        )
        with pytest.raises(again, match=match):
            next(epoch)
        state = loader.state_dict()
    with load() as loader:
        loader.load_state_dict(state)
        assert found + [batch["x"].tolist() for batch in loader] == whole
    assert len(found) == failing - 1
