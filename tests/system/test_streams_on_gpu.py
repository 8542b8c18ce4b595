"""The replacements of torch's ways to change streams, compared with those."""

import subprocess
import sys

import pytest
import torch

from gdsload.system.streams import current_stream, on, side_stream

pytestmark = pytest.mark.cuda


def streams_of(device):
    with torch.cuda.device(device):
        mine = torch.cuda.Stream()
        return [torch.cuda.default_stream(), mine, side_stream(device), torch.cuda.ExternalStream(mine.cuda_stream)]


def test_the_current_stream_is_torch_s(devices):
    """Also of several devices, whose default streams have one handle."""
    for _ in range(2):
        for device in devices:
            for stream in streams_of(device):
                with torch.cuda.stream(stream):
                    found = current_stream(device)
                    assert (found.cuda_stream, found.device) == (stream.cuda_stream, device)
    assert current_stream(torch.device("cuda", 0)) == torch.cuda.current_stream(0)


def test_work_is_queued_there_and_then_on_the_stream_of_before(devices):
    for device in devices:
        for before in streams_of(torch.device("cuda", 0)):
            side = side_stream(device)
            with torch.cuda.stream(before):
                with on(side):
                    assert (torch.cuda.current_device(), torch.cuda.current_stream()) == (device.index, side)
                    with on(torch.cuda.default_stream(device)):
                        assert torch.cuda.current_stream() == torch.cuda.default_stream(device)
                    assert torch.cuda.current_stream() == side
                with pytest.raises(ZeroDivisionError), on(side):
                    1 / 0  # noqa: B018
                assert (torch.cuda.current_device(), torch.cuda.current_stream()) == (0, before)
                assert torch.cuda.current_stream(device) == (
                    before if device.index == 0 else torch.cuda.default_stream(device)
                )


LEFT_OPEN = """
import sys
from gdsload import DataLoader, ShardDataset
loaders = [DataLoader(sys.argv[1], 64, device="cuda", backend=backend) for backend in ("auto", "bounce", "mapped")]
for loader in loaders:
    for batch in loader:
        pass
    batch = next(iter(loader))
dataset = ShardDataset(sys.argv[1])
dataset.gather([0, 1], device="cuda")
"""


def test_what_is_left_open_ends_with_the_process_without_a_word(numbered):
    found = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN, str(numbered)], capture_output=True, text=True, timeout=80, check=False
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


ELSEWHERE = """
import sys, torch
from gdsload import DataLoader, ShardDataset
torch.cuda.set_device(1)
torch.ones(1, device="cuda:1")
has_context, found = torch._C._cuda_hasPrimaryContext, []
found.append(("torch", has_context(0)))
for options in ({}, {"backend": "bounce"}, {"backend": "mapped"}, {"cache": "vram"}, {"shuffle": "block"}):
    with DataLoader(sys.argv[1], 64, device="cuda:1", **options) as loader:
        for _ in range(2):
            for batch in loader:
                pass
    found.append((options, has_context(0)))
ShardDataset(sys.argv[1]).gather([0, 1], device="cuda:1")
found.append(("gather", has_context(0)))
print([what for what, has in found if has])
"""


@pytest.mark.usefixtures("two_gpus")
def test_a_process_that_uses_another_gpu_has_no_context_on_the_first_one(numbered):
    found = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(numbered)], capture_output=True, text=True, timeout=100, check=False
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "[]\n", "")
