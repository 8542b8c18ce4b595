"""Which NUMA node a GPU is at, and which processors are near; as far as that can be asked without a GPU."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.system import pinned
from gdsload.system.pinned import node_of, processors_of

GPU = torch.device("cuda:0")


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """Make nodes up: called with the list of processors of each."""

    def make(*lists):
        for number, text in enumerate(lists):
            (tmp_path / f"node{number}").mkdir(exist_ok=True)
            (tmp_path / f"node{number}" / "cpulist").write_text(text)
        return tmp_path

    monkeypatch.setattr(pinned, "_NODES", str(tmp_path))
    return make


def written(numbers):
    """Processors as the kernel writes them: ranges where they can be."""
    parts, numbers = [], sorted(numbers)
    while numbers:
        count = next((at for at, number in enumerate(numbers) if number != numbers[0] + at), len(numbers))
        parts.append(f"{numbers[0]}-{numbers[count - 1]}" if count > 1 else f"{numbers[0]}")
        numbers = numbers[count:]
    return ",".join(parts) + "\n"


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.sets(st.integers(0, 40)))
def test_processors_of_a_node_are_those_that_this_process_may_use(tmp_path_factory, numbers):
    folder = tmp_path_factory.mktemp("nodes")
    (folder / "node0").mkdir()
    (folder / "node0" / "cpulist").write_text(written(numbers))
    allowed = os.sched_getaffinity(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pinned, "_NODES", str(folder))
        assert processors_of(0) == (numbers & allowed or allowed)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0-3\n", {0, 1, 2, 3}),
        ("2\n", {2}),
        ("0-1,4-5,7\n", {0, 1, 4, 5, 7}),
        ("8-63\n", set(range(8))),  # none that we may use: then all that we may
        ("6-100000\n", {6, 7}),
        ("\n", set(range(8))),  # a node of nothing but memory
        ("0-x\n", set(range(8))),
        ("3-1\n", set(range(8))),
    ],
)
def test_lists_of_processors(nodes, monkeypatch, text, found):
    nodes("", text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert processors_of(1) == found


def test_a_node_that_there_is_not_has_them_all(nodes):
    nodes("0\n")
    assert processors_of(7) == processors_of(-1) == os.sched_getaffinity(0)


def test_a_thread_that_is_kept_to_one_processor_stays_there(nodes):
    one = {max(os.sched_getaffinity(0))}
    nodes("0-1023\n", "5000\n")

    def ask():
        os.sched_setaffinity(0, one)  # of this thread alone
        return processors_of(0), processors_of(1)

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(ask).result() == (one, one)


# --- nodes of GPUs ---


@pytest.fixture
def gpu(monkeypatch):
    """Make a GPU up, at a place of the PCI bus."""

    def make(address):
        domain, bus, rest = address.split(":")
        found = SimpleNamespace(
            pci_domain_id=int(domain, 16), pci_bus_id=int(bus, 16), pci_device_id=int(rest.split(".")[0], 16)
        )
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)

    return make


def test_one_node_needs_no_asking(nodes, monkeypatch):
    def ask(device):
        raise AssertionError("CUDA was asked")

    monkeypatch.setattr(torch.cuda, "get_device_properties", ask)
    folder = nodes("0-3\n")
    for name in ("has_cpu", "online", "possible", "power", "nodeX"):
        (folder / name).touch()
    assert node_of(GPU) == -1
    nodes("0-1\n", "2-3\n")
    with pytest.raises(AssertionError, match="CUDA was asked"):
        node_of(GPU)


def test_a_system_that_does_not_know_nodes(monkeypatch, tmp_path):
    monkeypatch.setattr(pinned, "_NODES", str(tmp_path / "none"))
    assert node_of(GPU) == -1


def test_the_node_is_the_one_of_the_device_at_the_gpus_place(nodes, gpu):
    nodes("0-1\n", "2-3\n")
    places = sorted(Path("/sys/bus/pci/devices").glob("*.0")) if os.path.isdir("/sys/bus/pci/devices") else []
    if not places:
        pytest.skip("this machine has no PCI bus")
    for place in places:
        gpu(place.name)
        assert node_of(GPU) == int((place / "numa_node").read_text())


def test_a_place_where_nothing_is(nodes, gpu):
    nodes("0-1\n", "2-3\n")
    gpu("ffff:fe:1f.0")
    assert node_of(GPU) == -1


def test_a_torch_that_does_not_tell_places(nodes, monkeypatch):
    nodes("0-1\n", "2-3\n")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(name="a GPU"))
    assert node_of(GPU) == -1


def test_the_node_is_read_from_the_file_of_that_place(nodes, gpu, monkeypatch, tmp_path):
    # All PCI devices of a small machine say -1, so that the test above may tell little: here the file is made up.
    nodes("0-1\n", "2-3\n")
    gpu("0001:0a:1c.0")
    asked, real = [], open
    (tmp_path / "numa_node").write_text("1\n")

    def opened(path, *args, **options):
        asked.append(path)
        return real(tmp_path / "numa_node", *args, **options)

    monkeypatch.setattr(pinned, "open", opened, raising=False)
    assert node_of(GPU) == 1
    assert asked == ["/sys/bus/pci/devices/0001:0a:1c.0/numa_node"]
    (tmp_path / "numa_node").write_text("")
    assert node_of(GPU) == -1
