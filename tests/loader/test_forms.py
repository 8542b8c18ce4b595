"""How a batch looks: ragged fields in their three forms, indices, transforms, and what torch makes of all that."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

import gdsload
from gdsload import Field, OptionError
from gdsload.loader.plan import LoaderPlan
from gdsload.testing import fingerprint
from tests.loader.taking import raw_bytes

TENSORS = ["points", "normals", "codes", "ragged_fp8"]
FORMS = ["jagged", "offsets", "padded", "varlen"]


def stored(found, form):
    """The values and offsets of a ragged field in some form; rows that are padding are left out."""
    if form == "jagged":
        assert (found.is_nested, found.layout) == (True, torch.jagged)
        return found.values(), found.offsets()
    if form == "varlen":
        assert type(found) is gdsload.Varlen
        assert found.cu_seqlens.dtype == torch.int32
        assert found.max_seqlen == max(found.cu_seqlens.diff().tolist(), default=0)
        return found.values, found.cu_seqlens.long()
    if form == "offsets":
        return found
    padded, lengths = found
    assert lengths.dtype == torch.int64
    assert padded.shape[:2] == (len(lengths), max(lengths.tolist(), default=0))
    rows = [row[:length] for row, length in zip(padded, lengths, strict=True)]
    return torch.cat(rows) if rows else padded.flatten(0, 1), functional.pad(lengths, (1, 0)).cumsum(0)


class TestRagged:
    @pytest.mark.parametrize("batch_size", [1, 9, 143])
    @pytest.mark.parametrize("form", FORMS)
    def test_every_form_has_the_samples_rows(self, load, rich, expect_rich, form, batch_size):
        for batch in load(rich, batch_size, "full", ragged=form, with_index=True):
            expect_rich({name: stored(batch[name], form) for name in TENSORS}, batch["index"].tolist())

    def test_jagged_is_the_default_and_ready_for_computing(self, load, rich):
        batch = next(iter(load(rich, 20, fields=["points", "normals"])))
        points, normals = batch["points"], batch["normals"]
        # Fields of equal lengths can be computed with each other, which torch allows only if they share their offsets.
        assert ((points.nan_to_num() + normals.nan_to_num()).values()).shape == points.values().shape
        mean = torch.nested.nested_tensor_from_jagged(torch.ones_like(points.values()), points.offsets()).sum(dim=1)
        assert mean[:, 0].tolist() == points.offsets().diff().tolist()
        batch = next(iter(load(rich, 20, ragged="varlen")))
        assert batch["points"].cu_seqlens is batch["normals"].cu_seqlens

    @pytest.mark.parametrize(
        ("batch_size", "padding"),
        [
            (1, 0),
            (9, 1.0),
            (143, True),
            *((size, {"points": 2.5, "codes": 65535, "ragged_fp8": -1}) for size in (9, 143)),
        ],
    )
    def test_padding_is_the_value_that_was_asked_for(self, load, rich, batch_size, padding):
        for batch in load(rich, batch_size, "full", ragged=gdsload.Padded(padding)):
            for name in TENSORS:
                padded, lengths = batch[name]
                value = padding.get(name, 0) if isinstance(padding, dict) else padding
                fill = raw_bytes(torch.tensor(value).to(padded.dtype))
                for row, length in zip(padded, lengths, strict=True):
                    rest = raw_bytes(row[length:])
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

    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize(
        ("dtype", "row"),
        [
            *((dtype, ()) for dtype in ("uint16", "float8_e4m3fn", "bool", "bfloat16", "complex64", "uint64")),
            *(("float32", row) for row in ((), (2,), (0,), (3, 0, 2))),
        ],
        ids=str,
    )
    def test_without_any_rows(self, load, tmp_path, form, dtype, row):
        """Samples without rows, rows without elements, and batches without samples."""
        kind, sizes = getattr(torch, dtype), []
        with gdsload.ShardWriter(tmp_path / "set", {"x": Field(dtype, (None, *row)), "n": Field("int64")}) as writer:
            for number in range(4):
                writer.write({"x": torch.empty((0, *row), dtype=kind), "n": number})
        ragged = gdsload.Padded(1) if form == "padded" else form
        for batch in load(tmp_path / "set", ragged=ragged, batch_sampler=[[0], [], [1, 2], []]):
            sizes.append(len(batch["n"]))
            values, offsets = stored(batch["x"], form)
            assert (values.shape, values.dtype, offsets.tolist()) == ((0, *row), kind, [0] * (sizes[-1] + 1))
        assert sizes == [1, 0, 2, 0]

    @pytest.mark.parametrize("form", FORMS)
    def test_rows_without_elements_still_count(self, load, tmp_path, form):
        with gdsload.ShardWriter(tmp_path / "set", {"x": Field("float32", (None, 0))}) as writer:
            writer.write_batch({"x": [torch.zeros(rows, 0) for rows in (3, 0, 2)]})
        (batch,) = load(tmp_path / "set", 3, ragged=form)
        values, offsets = stored(batch["x"], form)
        assert (values.shape, offsets.tolist()) == ((5, 0), [0, 3, 3, 5])


@pytest.mark.parametrize(
    "options",
    [
        *({"ragged": form, "with_index": True} for form in FORMS),
        {
            "fields": ["image"],
            "sample_transform": lambda sample: (sample, "text"),
            "device_transform": lambda one: [one],
        },
        {"collate_fn": list},
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
