"""Files of `torch.save`, hostile ones included."""

import pickle

import numpy as np
import pytest
import torch

import gdsload
from gdsload.conversion.sources.torch_files import TorchFileSource
from gdsload.errors import FormatError, OptionError
from tests.conversion.contents import Evil
from tests.conversion.reading import made_by

COUNT = 20


def save(path, value, **options):
    torch.save(value, path, **options)
    return str(path)


@pytest.mark.parametrize("legacy", [False, True])
def test_tensors_in_a_dictionary(tmp_path, legacy):
    tensors = {
        "x": torch.randn(COUNT, 2, 3, dtype=torch.bfloat16),
        "strided": torch.arange(2 * COUNT).reshape(2, COUNT).T,
        "parameter": torch.nn.Parameter(torch.randn(COUNT)),
        "flag": torch.arange(COUNT) > 4,
    }
    path = save(tmp_path / "a.pt", tensors, _use_new_zipfile_serialization=not legacy)
    source = pickle.loads(pickle.dumps(TorchFileSource(path)))
    found = made_by(source, 100)
    assert len(found) > 2
    for name, tensor in tensors.items():
        assert torch.equal(torch.cat([one[name] for one in found]), tensor.detach())
        assert found[0][name].dtype == tensor.dtype
    assert list(made_by(TorchFileSource(path).only(["flag"]))[0]) == ["flag"]


def test_a_tensor_and_lists_of_them(tmp_path):
    x, y = torch.arange(6).reshape(3, 2), torch.tensor([1.0, 2.0, 3.0])
    assert list(made_by(TorchFileSource(save(tmp_path / "latents.pth", x)))[0]) == ["latents"]
    for value in ((x, y), [x, y]):
        (found,) = made_by(TorchFileSource(save(tmp_path / "a.pt", value)))
        assert {name: one.tolist() for name, one in found.items()} == {"0": x.tolist(), "1": y.tolist()}


def test_a_folder_wants_to_know_what_a_sample_is(tmp_path, out, samples_in):
    for number in range(12):
        save(tmp_path / f"{number}.pt", {"z": torch.full((4, 2), number), "label": number, "text": f"é{number}"})
    with pytest.raises(OptionError, match="it holds 12 files. Pass `each='file'`"):
        TorchFileSource(str(tmp_path)).parts(1)
    found = samples_in(TorchFileSource(str(tmp_path), each="file"), 4000)
    assert [(one["z"].tolist(), one["label"], one["text"]) for one in found] == [
        ([[n, n]] * 4, n, f"é{n}") for n in range(12)
    ]
    rows = samples_in(TorchFileSource(str(tmp_path), each="row").only(["z"]))
    assert [one["z"].tolist() for one in rows] == [[n, n] for n in range(12) for _ in range(4)]
    report = gdsload.convert(tmp_path, out, each="file", workers=1, shard_bytes=3000)
    assert (report.samples, gdsload.ShardDataset(out)[11]["label"]) == (12, 11)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's before 2.12, of any sparse tensor
@pytest.mark.parametrize(
    ("value", "match"),
    [
        ({"x": torch.zeros(3), "y": torch.zeros(2)}, "different lengths"),
        ({"x": torch.zeros(3), "epoch": 7}, r"entry 'epoch' is int, no tensor.*fields="),
        ({"x": torch.zeros(3).expand(10**9, 3)}, "entry 'x' repeats its values"),
        ({"x": torch.eye(3).to_sparse()}, "not all there one by one"),
        ({"x": torch.zeros(3, device="meta")}, "not all there one by one"),
        ([torch.zeros(2)] * 65, "a list of 65 values"),
        (7, "it holds int, no tensors"),
        ({"x": np.zeros(3)}, "more than plain tensors, which is never unpickled"),
    ],
)
def test_what_is_no_plain_tensors(tmp_path, value, match):
    source = TorchFileSource(save(tmp_path / "a.pt", value))
    with pytest.raises(FormatError, match=match):
        source.parts(1)


@pytest.mark.parametrize("legacy", [False, True])
def test_nothing_is_unpickled(tmp_path, legacy):
    path = save(tmp_path / "a.pt", {"x": Evil()}, _use_new_zipfile_serialization=not legacy)
    for each in ("row", "file"):
        with pytest.raises(FormatError, match="never unpickled"):
            made_by(TorchFileSource(path, each=each))


def test_checksums_are_compared_where_they_were_written(tmp_path, monkeypatch):
    path = save(tmp_path / "a.pt", {"x": torch.arange(1000.0)})
    content = bytearray((tmp_path / "a.pt").read_bytes())
    place = content.index(np.arange(1000, dtype=np.float32).tobytes())
    content[place + 2000] ^= 1
    (tmp_path / "a.pt").write_bytes(content)
    for each in ("row", "file"):
        with pytest.raises(FormatError, match="it is damaged: Bad CRC-32"):
            made_by(TorchFileSource(path, each=each))
    torch.serialization.set_crc32_options(compute_crc32=False)
    try:
        save(tmp_path / "a.pt", {"x": torch.arange(1000.0)})
    finally:
        torch.serialization.set_crc32_options(compute_crc32=True)
    assert torch.equal(torch.cat([one["x"] for one in made_by(TorchFileSource(path))]), torch.arange(1000.0))


@pytest.mark.parametrize("legacy", [False, True])
def test_damaged_files(tmp_path, survives_damage, legacy):
    value = {"x": torch.randn(20, 3), "y": torch.arange(20)}
    path = save(tmp_path / "a.pt", value, _use_new_zipfile_serialization=not legacy)
    assert survives_damage(path, lambda: TorchFileSource(path), 40) > 10
