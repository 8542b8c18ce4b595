"""Files that `torch.save` has written of plain tensors. Nothing else in them is ever unpickled."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal, Unpack

import torch

from gdsload.conversion.input_files import FileOptions, FileSource, check_file, open_file
from gdsload.conversion.reasons import in_words, reading
from gdsload.conversion.row_source import array_items, array_parts, check_fields, filled, run_parts, sample_fields
from gdsload.conversion.source import FieldChoice, Item, Part
from gdsload.errors import FormatError, OptionError

_MAX_FIELDS = 64
_PIECE_BYTES = 2**22
_SINGLE = (int, float, bool, str, bytes)


class TorchFileSource(FieldChoice, FileSource):
    """Tensors that `torch.save` has written: one, or a dictionary, list or tuple of them, which are the fields.

    A tensor alone is a field called after its file, those of a list are ``"0"``, ``"1"`` and so on. Loading is
    torch's own with ``weights_only=True``, mapped into memory where the file's format allows it. The checksums of the
    file's records are compared, where they were written.

    Args:
        path: a `.pt` or `.pth` file, or a folder of them.
        each: what a sample is: ``"row"``, where the first dimension of all tensors counts the samples, and files
            follow each other; ``"file"``, where numbers and texts beside the tensors are fields, too. None: rows of a
            file; of a folder it must be said.
    """

    kind = "torch.save files"
    threads = True
    suffixes = (".pt", ".pth")
    decisive = ("each",)

    def __init__(self, path: str, *, each: Literal["row", "file"] | None = None, **files: Unpack[FileOptions]) -> None:
        super().__init__(path, **files)
        self.each = each

    def parts(self, target_bytes: int) -> list[Part]:
        files = self.all_files()
        if self.each is None and len(files) > 1:
            raise OptionError(
                f"it holds {len(files)} files",
                file=self.path,
                remedy="Pass `each='file'` if each is one sample; `each='row'` if the first dimension "
                "of their tensors counts samples.",
            )
        if self.each == "file":
            return run_parts("files", list(map(os.path.getsize, files)), target_bytes, files=files)
        found: list[Part] = []
        for file in files:
            _check_records(file)
            prefix = f"{os.path.basename(file)}, rows"
            found += array_parts(self._rows(file), target_bytes, file, prefix=prefix, where=(file,))
        return filled(found, "row", self.path)

    def read(self, part: Part) -> Iterator[Item]:
        if self.each == "file":
            for file in part.where:
                yield Item(str(file), partial(self._sample, str(file)))
            return
        file, low, high = str(part.where[0]), int(part.where[1]), int(part.where[2])
        yield from array_items(self._rows(file), low, high)

    def _sample(self, file: str) -> dict[str, Any]:
        _check_records(file)
        found = self._entries(file)
        return {
            name: value if isinstance(value, _SINGLE) else _tensor(value, name, file) for name, value in found.items()
        }

    def _rows(self, file: str) -> dict[str, torch.Tensor]:
        return {name: _tensor(value, name, file) for name, value in self._entries(file).items()}

    def _entries(self, file: str) -> dict[str, Any]:
        loaded = _loaded(file)
        if isinstance(loaded, torch.Tensor):
            found = {os.path.splitext(os.path.basename(file))[0]: loaded}
            if self.each == "file":  # names of files differ
                found = {"0": loaded}
        elif isinstance(loaded, Mapping):
            found = {str(name): value for name, value in loaded.items()}
        elif isinstance(loaded, list | tuple):
            found = {str(number): value for number, value in enumerate(loaded)}
            if len(found) > _MAX_FIELDS:
                raise FormatError(
                    f"it is a list of {len(found)} values, too many to be fields of one sample",
                    file=file,
                    remedy="If each is a sample, save them stacked (torch.stack), or pass a torch dataset.",
                )
        else:
            raise FormatError(f"it holds {type(loaded).__name__}, no tensors", file=file)
        check = sample_fields if self.each == "file" else check_fields
        return {name: found[name] for name in check(self.fields, found, file)}


def _tensor(value: Any, name: str, file: str) -> torch.Tensor:
    """A tensor as it may be written: dense, in memory, and no larger than what the file has of it."""
    if not isinstance(value, torch.Tensor):
        remedy = "Choose the entries to take: `fields=[...]`."
        raise FormatError(f"entry {name!r} is {type(value).__name__}, no tensor", file=file, remedy=remedy)
    if value.layout != torch.strided or value.device.type != "cpu" or value.is_quantized or value.is_nested:
        raise FormatError(f"entry {name!r} is a tensor of values that are not all there one by one", file=file)
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise FormatError(f"entry {name!r} repeats its values", file=file, remedy="Save it contiguous.")
    return value.detach()


def _loaded(file: str) -> Any:
    check_file(file)
    try:
        return torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except MemoryError:
        raise
    except Exception as error:  # readers of damaged files raise anything
        unsafe = "weights_only" in str(error) or "Weights only" in str(error)
        reason = "it holds more than plain tensors, which is never unpickled" if unsafe else in_words(error)
        remedy = "Save tensors, in a dictionary or list: `torch.save({'x': x}, file)`. Copy a damaged file again."
        raise FormatError(f"the file cannot be read: {reason}", file=file, remedy=remedy) from None


def _check_records(file: str) -> None:
    """Compare the checksums of a file's records; torch does not.

    Raises:
        FormatError: if one differs.
    """
    check_file(file)
    with reading("it is damaged", file, remedy="Copy it again, whole."):
        if not zipfile.is_zipfile(file):
            return
        with open_file(file) as raw, zipfile.ZipFile(raw) as archive:
            for record in archive.infolist():
                if not record.CRC or record.compress_type:  # not written (`set_crc32_options`); torch packs nothing
                    continue
                with archive.open(record) as opened:
                    while opened.read(_PIECE_BYTES):
                        pass
