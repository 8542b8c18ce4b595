"""Batches taken apart and put together, in one process: as peers do it, without what is between them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.engine.codecs import Jagged, Offsets, Padded
from gdsload.engine.parts import Gathered, Part, RaggedRows, together
from gdsload.order import part_starts
from gdsload.shards.format.dtypes import dtype_of
from gdsload.shards.format.schema import Field


def exchanged(batches):
    """What peers with these parts have gathered."""
    made = [Part.of(batch) for batch in batches]
    packed = {}
    for kind in made[0].packed:
        buffers = [part.packed[kind] for part in made]
        most = max(map(len, buffers))
        packed[kind] = torch.stack([torch.cat([one, one.new_full((most - len(one),), 7)]) for one in buffers])
    alone = {name: torch.cat([part.alone[name] for part in made]) for name in made[0].alone}
    return made, Gathered(alone, packed)


def ragged(rows, lengths, start, stop):
    ends = np.cumsum([0, *lengths])
    return RaggedRows(rows[ends[start] : ends[stop]], np.array(lengths[start:stop], np.int64))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 4), max_size=23), st.integers(2, 5))
def test_a_batch_is_whole_again(lengths, parts):
    size, each = len(lengths), -(-len(lengths) // parts)
    codec = Offsets("rows", Field("bfloat16", (None, 3)))
    rows = torch.randint(0, 2**16, (sum(lengths), 3)).to(torch.uint16).view(torch.bfloat16)
    wide = torch.arange(size << 16).to(torch.uint8).view(size, 64, 1024).transpose(1, 2)
    small = {"flag": torch.rand(size, 3) < 0.5, "empty": torch.zeros(size, 0), "number": torch.arange(2 * size)[::2]}
    batches = [
        {"rows": ragged(rows, lengths, low, low + each), "wide": wide[low : low + each],
         **{name: value[low : low + each] for name, value in small.items()}}
        for low in part_starts(size, parts)
    ]  # fmt: skip
    made, found = exchanged(batches)
    assert ("wide" in found.alone) == (each >= 4)
    for part in made:
        batch = together(part, found, size, parts, {"rows": codec})
        assert list(batch) == list(batches[0])
        values, offsets = batch["rows"]
        assert torch.equal(values.view(torch.uint16), rows.view(torch.uint16))
        assert offsets.tolist() == np.cumsum([0, *lengths]).tolist()
        for name, value in {**small, "wide": wide}.items():
            assert torch.equal(batch[name], value)
        assert each < 4 or batch["wide"].stride()[1:] == wide.stride()[1:]


@pytest.mark.parametrize("dtype", ["float32", "float8_e5m2", "uint16"])
def test_padding_is_as_long_as_the_longest_of_all(dtype):
    field = Field(dtype, (None, 2))
    padding = np.arange(1, dtype_of(dtype).itemsize + 1, dtype=np.uint8)
    rows = torch.arange(40 * dtype_of(dtype).itemsize, dtype=torch.uint8).view(getattr(torch, dtype)).view(20, 2)
    lengths = [1, 0, 5, 14]
    made, found = exchanged([{"x": ragged(rows, lengths, 0, 2)}, {"x": ragged(rows, lengths, 2, 4)}])
    values, counts = together(made[0], found, 4, 2, {"x": Padded("x", field, padding)})["x"]
    assert counts.tolist() == lengths
    assert values.shape == (4, 14, 2)
    filled = torch.from_numpy(padding).view(getattr(torch, dtype))[0]
    ends = np.cumsum([0, *lengths])
    for number, count in enumerate(lengths):
        wanted = torch.full((14, 2), 0, dtype=torch.uint8).to(values.dtype)
        wanted[:] = filled
        wanted[:count] = rows[ends[number] : ends[number + 1]]
        assert torch.equal(values[number].contiguous().view(torch.uint8), wanted.view(torch.uint8))


def test_fields_of_equal_lengths_share_their_offsets():
    lengths = [2, 1, 3]
    rows = torch.arange(12.0).view(6, 2)
    codecs = {name: Jagged(name, Field("float32", (None, 2))) for name in "ab"}
    parts = [{name: ragged(rows, lengths, low, low + 2) for name in "ab"} for low in part_starts(3, 2)]
    made, found = exchanged(parts)
    batch = together(made[1], found, 3, 2, codecs)
    assert torch.equal((batch["a"] + batch["b"]).values(), 2 * rows)


@pytest.mark.parametrize("padded", [True, False])
def test_unless_what_is_done_to_one_of_them_would_concern_the_others(padded):
    field, lengths, rows = Field("float32", (None, 2)), [2, 1, 3], torch.arange(12.0).view(6, 2)
    codecs = {name: Padded(name, field, np.zeros(4, np.uint8)) if padded else Offsets(name, field) for name in "ab"}
    parts = [{name: ragged(rows, lengths, low, low + 2) for name in "ab"} for low in part_starts(3, 2)]
    made, found = exchanged(parts)
    batch = together(made[1], found, 3, 2, codecs)
    batch["a"][1].fill_(-1)
    assert batch["b"][1].tolist() == (lengths if padded else [0, 2, 3, 6])
