"""The GPU backends do what every backend must do, byte for byte."""

import pytest
import torch

from gdsload.backends.bounce.bounce import BounceBackend
from gdsload.backends.gds.gds import GdsBackend
from gdsload.backends.mapped import MappedBackend
from gdsload.backends.tiers.registered import RegisteredTier
from gdsload.backends.tiers.tiered import Tiered
from gdsload.system.streams import DeviceBytes
from gdsload.testing import BackendTests

pytestmark = pytest.mark.cuda


class OnDevice(BackendTests):
    """Bytes are read where the GPU finds them."""

    index = 0

    def read_memory(self, address, nbytes):
        device = torch.device("cuda", self.index)
        return torch.as_tensor(DeviceBytes(address, nbytes), device=device).clone().cpu().numpy().tobytes()

    @property
    def device(self):
        return torch.device("cuda", self.index)


class TestBounce(OnDevice):
    """The page cache decides between reads with O_DIRECT, other reads, and gathers out of mappings."""

    @pytest.fixture(params=["hot", "cold", "few small blocks"])
    def open_backend(self, request, monkeypatch):
        if request.param == "cold":
            for module in ("fill_threads", "resident_rows"):
                monkeypatch.setattr(f"gdsload.backends.bounce.{module}.looks_resident", lambda *_: False)
        few = {"threads": 3, "pinned_bytes": 6 * 64 * 1024} if request.param == "few small blocks" else {}
        return lambda files: BounceBackend(files, self.device, **few)


class TestBounceOutOfMappings(TestBounce):
    mapped = True


class TestBounceWithTorchsCopies(OnDevice):
    """As where CUDA's driver cannot be called directly."""

    @pytest.fixture
    def open_backend(self, monkeypatch):
        monkeypatch.setattr("gdsload.backends.bounce.copier.driver", lambda: None)
        return lambda files: BounceBackend(files, self.device)


class TestMapped(OnDevice):
    mapped = True

    @pytest.fixture
    def open_backend(self):
        return lambda files: MappedBackend(files, self.device, register_bytes=2**30)


class TestRegistered(OnDevice):
    """With room for all shards, and where some never are registered."""

    mapped = may_be_in_place = True

    @pytest.fixture(params=[2**30, 2 * 2**20], ids=["room for all", "little room"])
    def open_backend(self, request):
        def make(files):
            tier = RegisteredTier(files, self.device, register_bytes=request.param, at_once=4)
            return Tiered("auto", files, tier, BounceBackend(files, self.device, pinned_bytes=2**22))

        return make


@pytest.mark.usefixtures("cufile")
class TestGds(OnDevice):
    """Batches in compat mode, too, where they have to fit into the slabs that cuFile has by default."""

    @pytest.fixture(
        params=[{}, {"register": True}, {"batches": True}, {"engine": "kvikio"}],
        ids=["plain", "registered", "in batches", "by kvikio"],
    )
    def open_backend(self, request):
        if "engine" in request.param:
            pytest.importorskip("kvikio")
        options = {"register": False, **request.param}
        return lambda files: GdsBackend(files, self.device, **options)


class SecondDevice:
    """On another device than torch's current one, where there is one."""

    index = 1

    @pytest.fixture(autouse=True)
    def two(self, two_gpus):
        pass


class TestBounceToTheSecond(SecondDevice, TestBounce):
    pass


class TestMappedForTheSecond(SecondDevice, TestMapped):
    pass
