"""How a batch looks: ragged fields in their three forms, indices, transforms, and what torch makes of all that."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gdsload
from gdsload import Field, OptionError
from gdsload.loader.plan import LoaderPlan
from gdsload.testing import fingerprint
from tests.loader.conftest import rich_sample
from tests.loader.taking import raw_bytes

TENSORS = ["points", "normals", "codes", "ragged_fp8"]


class TestRagged:
    @pytest.mark.parametrize("batch_size", [1, 9, 143])
    def test_jagged(self, load, rich, batch_size):
        for batch in load(rich, batch_size, "full", with_index=True):
            samples = [rich_sample(number) for number in batch["index"].tolist()]
            for name in TENSORS:
                found = batch[name]
                assert (found.is_nested, found.layout) == (True, torch.jagged)
                assert found.dtype == samples[0][name].dtype
                assert found.offsets().dtype == torch.int64
                assert [raw_bytes(row) for row in found.unbind()] == [raw_bytes(sample[name]) for sample in samples]

    def test_jagged_is_the_default_and_ready_for_computing(self, load, rich):
        batch = next(iter(load(rich, 20, fields=["points", "normals"])))
        points, normals = batch["points"], batch["normals"]
        # Fields of equal lengths can be computed with each other, which torch allows only if they share their offsets.
        assert ((points.nan_to_num() + normals.nan_to_num()).values()).shape == points.values().shape
        mean = torch.nested.nested_tensor_from_jagged(torch.ones_like(points.values()), points.offsets()).sum(dim=1)
        assert mean[:, 0].tolist() == points.offsets().diff().tolist()

    @pytest.mark.parametrize("batch_size", [1, 9, 143])
    def test_varlen(self, load, rich, batch_size):
        loader = load(rich, batch_size, "full", ragged="varlen", fields=TENSORS)
        for packed, plain in zip(loader, load(rich, batch_size, "full", ragged="offsets", fields=TENSORS), strict=True):
            for name in TENSORS:
                values, offsets = plain[name]
                assert type(packed[name]) is gdsload.Varlen
                assert raw_bytes(packed[name].values) == raw_bytes(values)
                assert packed[name].values.shape == values.shape
                assert (packed[name].cu_seqlens.dtype, packed[name].cu_seqlens.tolist()) == (
                    torch.int32,
                    offsets.tolist(),
                )
                assert packed[name].max_seqlen == offsets.diff().max()
            assert packed["points"].cu_seqlens is packed["normals"].cu_seqlens

    @pytest.mark.parametrize(
        ("batch_size", "padding"),
        [
            (1, 0),
            (9, 1.0),
            (143, True),
            *((size, {"points": 2.5, "codes": 65535, "ragged_fp8": -1}) for size in (9, 143)),
        ],
    )
    def test_padded(self, load, rich, batch_size, padding):
        for batch in load(rich, batch_size, "full", ragged=gdsload.Padded(padding), with_index=True):
            samples = [rich_sample(number) for number in batch["index"].tolist()]
            for name in TENSORS:
                padded, lengths = batch[name]
                wanted = [sample[name] for sample in samples]
                assert lengths.tolist() == [len(rows) for rows in wanted]
                assert lengths.dtype == torch.int64
                assert padded.shape == (len(samples), max(map(len, wanted)), *wanted[0].shape[1:])
                assert padded.dtype == wanted[0].dtype
                value = padding.get(name, 0) if isinstance(padding, dict) else padding
                fill = raw_bytes(torch.tensor(value).to(padded.dtype))
                for row, rows in zip(padded, wanted, strict=True):
                    assert raw_bytes(row[: len(rows)]) == raw_bytes(rows)
                    rest = raw_bytes(row[len(rows) :])
                    assert rest == fill * (len(rest) // len(fill))

    @settings(derandomize=True)
    @given(
        st.sampled_from([torch.uint8, torch.int8, torch.uint16, torch.int32, torch.uint64, torch.int64]),
        st.integers(-(2**63), 2**64 - 1) | st.integers(-300, 300) | st.integers(65530, 65540),
    )
    def test_a_value_that_fits_is_there_and_any_other_is_refused(self, tmp_path_factory, dtype, value):
        folder = tmp_path_factory.getbasetemp() / f"padded-{dtype}"
        if not folder.exists():
            with gdsload.ShardWriter(folder, {"x": Field(dtype, (None,))}) as writer:
                writer.write_batch({"x": [torch.ones(rows, dtype=dtype) for rows in (2, 0)]})
        info = torch.iinfo(dtype)
        if not info.min <= value <= info.max:
            with pytest.raises(OptionError, match=f"field 'x': the padding is {value}, which .* cannot hold: it holds"):
                gdsload.DataLoader(folder, 2, device="cpu", ragged=gdsload.Padded(value))
            return
        with gdsload.DataLoader(folder, 2, device="cpu", ragged=gdsload.Padded(value)) as loader:
            (batch,) = loader
        assert batch["x"][0].tolist() == [[1, 1], [value, value]]

    @pytest.mark.parametrize("padding", [0, 0.0, -0.0])
    def test_no_type_without_a_zero_is_padded_with_another_number(self, load, tmp_path, padding):
        with gdsload.ShardWriter(tmp_path / "set", {"scale": Field("float8_e8m0fnu", (None,))}) as writer:
            writer.write_batch({"scale": [[1.0, 2.0], [4.0]]})
        with pytest.raises(OptionError, match="the padding is .*0, which float8_e8m0fnu cannot hold: .* from 5.8"):
            load(tmp_path / "set", 2, ragged=gdsload.Padded(padding))
        (batch,) = load(tmp_path / "set", 2, ragged=gdsload.Padded(0.5))
        assert batch["scale"][0].float().tolist() == [[1, 2], [4, 0.5]]

    @pytest.mark.parametrize("ragged", ["jagged", "offsets", "padded", "varlen"])
    @pytest.mark.parametrize(
        ("dtype", "row"),
        [
            *((dtype, ()) for dtype in ("uint16", "float8_e4m3fn", "bool", "bfloat16", "complex64", "uint64")),
            *(("float32", row) for row in ((), (2,), (0,), (3, 0, 2))),
        ],
        ids=str,
    )
    def test_without_any_rows(self, load, tmp_path, ragged, dtype, row):
        """Samples without rows, rows without elements, and batches without samples."""
        with gdsload.ShardWriter(tmp_path / "set", {"x": Field(dtype, (None, *row)), "n": Field("int64")}) as writer:
            for number in range(4):
                writer.write({"x": torch.empty((0, *row), dtype=getattr(torch, dtype)), "n": number})
        kind = getattr(torch, dtype)
        sizes = []
        form = gdsload.Padded(1) if ragged == "padded" else ragged
        for batch in load(tmp_path / "set", ragged=form, batch_sampler=[[0], [], [1, 2], []]):
            size = len(batch["n"])
            sizes.append(size)
            found = batch["x"]
            if ragged == "jagged":
                assert (found.size(0), found.values().shape, found.dtype) == (size, (0, *row), kind)
            elif ragged == "varlen":
                assert (found.values.shape, found.values.dtype, found.max_seqlen) == ((0, *row), kind, 0)
                assert found.cu_seqlens.tolist() == [0] * (size + 1)
            elif ragged == "offsets":
                assert (found[0].shape, found[0].dtype, found[1].tolist()) == ((0, *row), kind, [0] * (size + 1))
            else:
                assert (found[0].shape, found[0].dtype, found[1].tolist()) == ((size, 0, *row), kind, [0] * size)
        assert sizes == [1, 0, 2, 0]

    def test_rows_without_elements_still_count(self, load, tmp_path):
        with gdsload.ShardWriter(tmp_path / "set", {"x": Field("float32", (None, 0))}) as writer:
            for rows in (3, 0, 2):
                writer.write({"x": torch.zeros(rows, 0)})
        assert next(iter(load(tmp_path / "set", 3, ragged="offsets")))["x"][1].tolist() == [0, 3, 3, 5]
        padded, lengths = next(iter(load(tmp_path / "set", 3, ragged="padded")))["x"]
        assert (padded.shape, lengths.tolist()) == ((3, 3, 0), [3, 0, 2])
        assert next(iter(load(tmp_path / "set", 3)))["x"].offsets().tolist() == [0, 3, 3, 5]


def collated(samples):
    """As loops for detection have it: what differs in size stays in lists."""
    return [sample["points"] for sample in samples], [{"boxes": sample["image"][:1], "text": "t"} for sample in samples]


@pytest.mark.parametrize(
    "options",
    [
        *({"ragged": ragged, "with_index": True} for ragged in ("jagged", "offsets", "padded", "varlen")),
        {
            "fields": ["image"],
            "sample_transform": lambda sample: (sample, "text"),
            "device_transform": lambda batch: [batch],
        },
        {"collate_fn": collated},
    ],
    ids=",".join,
)
def test_batches_of_every_form_survive_torchs_own_copies(load, rich, options, monkeypatch):
    """As on accelerators that torch copies batches to."""
    built = [fingerprint(batch) for batch in load(rich, 20, "full", **options)]
    monkeypatch.setattr(LoaderPlan, "copies", True)
    assert [fingerprint(batch) for batch in load(rich, 20, "full", **options)] == built


def test_the_index_is_int64_on_the_cpu(load, plain):
    batches = load(plain, 10, with_index=True)
    assert {(batch["index"].dtype, batch["index"].device.type) for batch in batches} == {(torch.int64, "cpu")}
