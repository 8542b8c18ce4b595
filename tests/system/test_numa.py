"""Which NUMA node a GPU is at, and which processors are near it, on machines that are made up of files."""

import os
import threading
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.system.numa import node_of, processors_near, stay_on
from gdsload.system.probe.tree import Tree

GPU = torch.device("cuda:0")
PLACE = "0001:0a:1c.0"


class Machine:
    """A GPU, and nodes with their processors."""

    def __init__(self, root):
        self.root, self.tree = root, Tree(str(root))

    def nodes(self, *lists):
        for number, text in enumerate(lists):
            self.write(f"sys/devices/system/node/node{number}/cpulist", text)

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def gpu(self, node, place=PLACE):
        self.write(f"sys/bus/pci/devices/{place}/numa_node", node)

    def near(self):
        return processors_near(GPU, self.tree)


@pytest.fixture(autouse=True)
def _gpu_at_its_place(monkeypatch):
    found = SimpleNamespace(pci_domain_id=1, pci_bus_id=10, pci_device_id=28)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def written(numbers):
    """Processors as the kernel writes them: ranges where they can be."""
    parts, numbers = [], sorted(numbers)
    while numbers:
        count = next((at for at, number in enumerate(numbers) if number != numbers[0] + at), len(numbers))
        parts.append(f"{numbers[0]}-{numbers[count - 1]}" if count > 1 else f"{numbers[0]}")
        numbers = numbers[count:]
    return ",".join(parts) + "\n"


@settings(derandomize=True, max_examples=40)
@given(st.sets(st.integers(0, 40)))
def test_processors_near_are_those_of_the_node_that_this_process_may_use(tmp_path_factory, numbers):
    machine = Machine(tmp_path_factory.mktemp("machine"))
    machine.nodes(written(numbers), "0-1000\n")
    machine.gpu("0\n")
    assert machine.near() == (numbers & os.sched_getaffinity(0) or None)


@pytest.mark.parametrize("text", ["0-x\n", "3-1\n"])
def test_what_is_no_list_of_processors(machine, text):
    machine.nodes("0-7\n", text)
    machine.gpu("1\n")
    assert machine.near() is None


@pytest.mark.parametrize("node", ["-1\n", "7\n", "\n", "x\n", None])
def test_a_gpu_whose_node_is_not_known(machine, node):
    machine.nodes("0-3\n", "4-7\n")
    machine.gpu("0\n", "0001:0b:1c.0")  # of a device at another place
    if node is not None:
        machine.gpu(node)
    assert machine.near() is None


@pytest.mark.parametrize("lists", [(), ("0-3\n",)])
def test_one_node_needs_no_asking(machine, monkeypatch, lists):
    for name in ("has_cpu", "online", "possible", "power/x", "nodeX/x"):
        machine.write(f"sys/devices/system/node/{name}", "")
    machine.nodes(*lists)
    machine.gpu("0\n")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: pytest.fail("torch was asked"))
    assert (node_of(GPU, machine.tree), machine.near()) == (-1, None)


@pytest.mark.parametrize("error", [AssertionError("no CUDA"), RuntimeError("no driver"), ValueError("no such device")])
def test_without_a_gpu(machine, monkeypatch, error):
    def refuse(device):
        raise error

    machine.nodes("0-1\n", "2-3\n")
    monkeypatch.setattr(torch.cuda, "get_device_properties", refuse)
    assert machine.near() is None


# --- threads ---


def test_staying_where_nothing_is_known_or_allowed_changes_nothing():
    allowed, found = os.sched_getaffinity(0), []

    def run():
        for where in (None, {100_000}, set()):
            stay_on(where)
            found.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [allowed] * 3
