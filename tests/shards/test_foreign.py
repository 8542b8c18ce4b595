"""Safetensors files that others wrote, and single files."""

import os

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gdsload
from gdsload import FormatError, OptionError, ShardDataset
from gdsload.shards.values import torch_dtypes
from gdsload.tools.bench import make_plan


def raw_file(path, tensors, *, shift):
    """A safetensors file with `shift` blanks after its header, so that its data may begin anywhere."""
    raw = safetensors.numpy.save(tensors)
    length = int.from_bytes(raw[:8], "little")
    data = 8 + length
    path.write_bytes((length + shift).to_bytes(8, "little") + raw[8:data] + b" " * shift + raw[data:])


def test_all_element_types_of_a_file(tmp_path):
    tensors = {}
    for code, dtype in torch_dtypes().items():
        raw = torch.arange(5 * 16, dtype=torch.uint8).reshape(5, 16) & (1 if code == "BOOL" else 255)
        tensors[code] = raw.view(dtype)
    safetensors.torch.save_file(tensors, tmp_path / "weights")  # one file may have any name
    dataset = ShardDataset(tmp_path / "weights")
    for index, sample in enumerate(dataset):
        for code, tensor in tensors.items():
            assert tensor.dtype == sample[code].dtype
            assert torch.equal(tensor[index].view(torch.uint8), sample[code].view(torch.uint8))


@settings(derandomize=True, max_examples=40)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=4),
    st.integers(0, 17),
    st.lists(st.sampled_from(["<f4", "|u1", "<i8"]), min_size=1, max_size=3),
    st.integers(0, 9),
    st.booleans(),
)
def test_data_may_lie_at_any_byte(tmp_path_factory, counts, shift, dtypes, width, mmap):
    folder = tmp_path_factory.mktemp("odd")
    rng = np.random.default_rng(len(counts) + shift)
    parts = []
    for number, count in enumerate(counts):
        part = {
            f"t{which}": rng.integers(0, 200, (count, width), np.uint8).astype(dtype)
            for which, dtype in enumerate(dtypes)
        }
        raw_file(folder / f"{number}.safetensors", part, shift=shift + number)
        parts.append(part)
    (folder / "README.md").write_text("not a shard")
    dataset = ShardDataset(folder, mmap=mmap)
    assert (len(dataset), dataset.counts.tolist()) == (sum(counts), counts)
    order = rng.permutation(len(dataset))
    for index, sample in zip(order, dataset.__getitems__(order), strict=True):
        for name in parts[0]:
            assert np.concatenate([part[name] for part in parts])[index].tolist() == sample[name].tolist()


def test_verify_says_that_nothing_could_be_checked(tmp_path):
    safetensors.torch.save_file({"x": torch.zeros(4, 3)}, tmp_path / "a.safetensors")
    report = ShardDataset(tmp_path).verify()
    assert (report.shards, report.checked_bytes, report.unchecked_bytes) == (1, 0, 48)


def test_digest_names_files_and_headers(tmp_path):
    digests = set()
    for tensors in ({"x": torch.zeros(4, 3)}, {"x": torch.zeros(3, 4)}, {"y": torch.zeros(4, 3)}):
        safetensors.torch.save_file(tensors, tmp_path / "a.safetensors")
        digests.add(ShardDataset(tmp_path).digest)
    os.rename(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    digests.add(ShardDataset(tmp_path).digest)
    assert len(digests) == 4


@pytest.mark.parametrize("samples", [2**40, 2**60])
def test_any_number_of_samples_of_no_bytes_takes_no_memory(tmp_path, samples):
    header = b'{"x":{"dtype":"F32","shape":[%d,0],"data_offsets":[0,0]}}' % samples
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    dataset = ShardDataset(path)
    assert dataset[samples - 1]["x"].shape == (0,)
    assert dataset.column("x").shape == (samples, 0)
    with pytest.raises(FormatError, match=f"{samples} samples of no bytes, and nothing to convert"):
        gdsload.convert(path, tmp_path / "out", workers=1)
    with pytest.raises(OptionError, match="no samples with bytes to measure"):
        make_plan(str(path))


# --- what cannot be one dataset ---


def test_files_that_disagree_are_all_listed(tmp_path):
    good = {"x": torch.zeros(4, 3), "y": torch.zeros(4)}
    safetensors.torch.save_file(good, tmp_path / "a.safetensors")
    safetensors.torch.save_file({**good, "x": torch.zeros(4, 2)}, tmp_path / "b.safetensors")
    safetensors.torch.save_file({**good, "y": torch.zeros(5)}, tmp_path / "c.safetensors")
    safetensors.torch.save_file({**good, "z": torch.tensor(1.0)}, tmp_path / "d.safetensors")
    (tmp_path / "e.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(FormatError, match="the files cannot be read as one dataset") as caught:
        ShardDataset(tmp_path)
    listed = [(os.path.basename(problem.file), problem.message) for problem in caught.value.problems]
    assert [file for file, _ in listed] == [f"{name}.safetensors" for name in "bcde"]
    assert "its fields are" in listed[0][1]
    assert listed[1][1] == "the tensors differ in their first dimension, the number of samples ('x': 4, 'y': 5)"
    assert listed[2][1] == "a tensor without dimensions has no samples"
    assert "the header is nothing that begins with" in listed[3][1]


@pytest.mark.parametrize("content", [b"", b"x" * 7, b"\xff" * 8, b"PK\3\4" * 100], ids=repr)
def test_file_that_is_no_safetensors_file(tmp_path, content):
    (tmp_path / "a.safetensors").write_bytes(content)
    for path in (tmp_path, tmp_path / "a.safetensors"):
        with pytest.raises(FormatError, match="cannot be read as one dataset") as caught:
            ShardDataset(path)
        assert [str(tmp_path / "a.safetensors")] == [problem.file for problem in caught.value.problems]


def test_link_to_a_plain_file_is_followed(tmp_path):
    """Nothing lists the files of such a folder, and people gather theirs from elsewhere with links."""
    (tmp_path / "d").mkdir()
    safetensors.torch.save_file({"x": torch.ones(2, 3)}, tmp_path / "elsewhere")
    (tmp_path / "d/a.safetensors").symlink_to(tmp_path / "elsewhere")
    assert ShardDataset(tmp_path / "d")[1]["x"].tolist() == [1.0, 1.0, 1.0]
