"""Recognition of a source's kind by the files at its path."""

from __future__ import annotations

import importlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from typing import Any, cast

from gdsload.conversion.folders import (
    PICTURES,
    entries_in,
    expanded,
    is_folder,
    is_passed_over,
    names_below,
    names_in,
    refuse_logged,
)
from gdsload.conversion.input_files import check_file, open_file
from gdsload.conversion.option_types import check_types, source_parameters
from gdsload.conversion.source import Source
from gdsload.conversion.splits import split_words
from gdsload.errors import DatasetNotFoundError, FormatError, OptionError
from gdsload.system.names import check_names
from gdsload.system.paths import absolute, refuse_no_path

_BOX = re.compile(rb"\s*+\d++(?:\.0*+)?+(?:\s++[-\d.]++(?:e[-+]?\d++)?+){4,}+\s*+$", re.IGNORECASE)
_BOM = b"\xef\xbb\xbf"


def has_boxes(file: str) -> bool | None:
    """Return whether a file's first line is a class and four or more numbers; None if it is empty or cannot be read."""
    with suppress(OSError, FormatError), open_file(file) as opened:
        line = opened.readline(_LOOKED_AT_BYTES).removeprefix(_BOM)
        if line.strip():
            return _BOX.match(line) is not None
    return None


def base_of(path: str) -> str:
    """The folder that holds `images` and `labels`: a path itself, or for a folder in `images` the one above that."""
    whole = absolute(path)
    pieces = whole.split(os.sep)
    if "images" not in pieces or os.path.isdir(os.path.join(whole, "images")):
        return whole
    base = os.sep.join(pieces[: len(pieces) - 1 - pieces[::-1].index("images")]) or os.sep
    return base if os.path.isdir(os.path.join(base, "labels")) else whole


_PLACE = "gdsload.conversion.sources"
KINDS = {
    "numpy": ("arrays", "ArraySource"),
    "images": ("image_folders", "ImageFolderSource"),
    "webdataset": ("webdataset_tars", "TarSource"),
    "parquet": ("parquet_files", "ParquetSource"),
    "csv": ("csv_files", "CsvSource"),
    "mds": ("mds_files", "MdsSource"),
    "litdata": ("litdata_chunks", "LitDataSource"),
    "safetensors": ("safetensors_files", "SafetensorsSource"),
    "hdf5": ("hdf5_files", "Hdf5Source"),
    "zarr": ("zarr_arrays", "ZarrSource"),
    "tokens": ("token_files", "TokenSource"),
    "jsonl": ("json_lines", "JsonLinesSource"),
    "lmdb": ("lmdb_files", "LmdbSource"),
    "tfrecord": ("tfrecord_files", "TfRecordSource"),
    "pt": ("torch_files", "TorchFileSource"),
    "idx": ("idx_files", "IdxSource"),
    "mat": ("mat_files", "MatSource"),
    "text": ("text_files", "TextSource"),
    "coco": ("coco_files", "CocoSource"),
    "yolo": ("yolo_files", "YoloSource"),
    "h5ad": ("h5ad_files", "H5adSource"),
    "audio": ("sounds", "AudioFolderSource"),
    "lerobot": ("lerobot_files", "LeRobotSource"),
    "huggingface": ("hf_datasets", "HuggingFaceSource"),
    "torch": ("torch_datasets", "TorchSource"),
}
"""Names of the kinds that `kind` takes: module and class of each."""

_OBJECTS = {"table": ("memory_tables", "TableInMemory"), "arrays": ("memory_tables", "ArraysInMemory")}
"""Names of the kinds of what is in memory, besides torch's datasets."""

_SUFFIXES = {
    ".npy": "numpy", ".npz": "numpy", ".tar": "webdataset", ".tar.gz": "webdataset", ".tgz": "webdataset",
    ".parquet": "parquet", ".arrow": "parquet", ".feather": "parquet", ".safetensors": "safetensors",
    ".h5": "hdf5", ".hdf5": "hdf5", ".hdf": "hdf5", ".csv": "csv", ".tsv": "csv", ".mds": "mds", ".mds.zstd": "mds",
    ".csv.gz": "csv", ".tsv.gz": "csv", ".nc": "hdf5", ".nc4": "hdf5",
    ".mds.gz": "mds", ".mds.bz2": "mds", ".mds.br": "mds", ".mds.snappy": "mds", ".bin": "tokens", ".jsonl": "jsonl",
    ".jsonl.gz": "jsonl", ".ndjson": "jsonl", ".ndjson.gz": "jsonl",
    ".mdb": "lmdb", ".lmdb": "lmdb", ".tfrecord": "tfrecord", ".tfrecords": "tfrecord", ".tfrec": "tfrecord",
    ".tfrecord.gz": "tfrecord", ".tfrecords.gz": "tfrecord", ".pt": "pt", ".pth": "pt", ".mat": "mat",
    ".wav": "audio", ".flac": "audio", ".mp3": "audio", ".ogg": "audio", ".opus": "audio", ".aiff": "audio",
    ".aif": "audio", ".h5ad": "h5ad", "-ubyte": "idx", "-ubyte.gz": "idx",
}  # fmt: skip
_MARKS = {
    "state.json": "huggingface", "dataset_dict.json": "huggingface",
    "zarr.json": "zarr", ".zgroup": "zarr", ".zarray": "zarr",
}  # fmt: skip
_IDX = re.compile(r"idx\d-(?:u?byte|short|int|float|double)(?:\.gz)?$", re.ASCII)
_NUMBERED = re.compile(r"-\d{5,}-of-\d{5,}$", re.ASCII)
_BRACES = "Patterns are written with braces: 'part-{0..9}.csv', '{a,b}.csv'. Of a folder all files are taken."
_ANNOTATIONS = re.compile(r"(^(instances|lvis|image_info)_.+|_annotations\.coco)\.json$", re.IGNORECASE)
_LOOKED_AT = 1000
_TEXTS_LOOKED_AT = 4
_NAMES_LOOKED_AT = 20_000
_LOOKED_AT_BYTES = 2**16
WAYS_OUT = (
    "Anything else is converted as a torch dataset, named as 'package.module:name' (in Python also as an object), or "
    "as a Source of your own: see gdsload.conversion.source."
)
_ENDINGS_SHOWN = 8
_JSON = "an array of JSON is read as a line for each sample: write it so (jq -c '.[]' a.json > a.jsonl)"


def source_for(source: object, kind: str | None, options: Mapping[str, Any] | None = None) -> Source:
    """The source that a user means, of one of `KINDS` or of the kind that is recognised, with options of that kind.

    It is named by a path, or as ``package.module:name``; or it is a torch dataset, a table or arrays in memory, or a
    source, which is returned as it is.

    Raises:
        DatasetNotFoundError: if there is nothing at the path.
        OptionError: if the kind is unknown, or cannot be found out.
    """
    name, made = source_class(source, kind)
    if made is None:
        return cast("Source", source)
    parameters = source_parameters(made)
    check_names(f"kind {name!r}", options or {}, parameters)
    check_types({name: one.annotation for name, one in parameters.items()}, options or {})
    place: object = source
    if isinstance(source, str | os.PathLike):
        refuse_no_path(source)
        place = os.fspath(source)
    return cast("Source", made(place, **(options or {})))


def source_class(source: object, kind: str | None) -> tuple[str, Callable[..., Any] | None]:
    """The kind that a user means and its class, or None for a source; raises as `source_for`."""
    if all(hasattr(source, name) for name in ("describe", "parts", "read")):
        return "", None
    is_path = isinstance(source, str | os.PathLike)
    _refuse_paths(source)
    name = kind or (recognise(os.fspath(cast("str", source))) if is_path else _by_object(source))
    kinds = KINDS if is_path else KINDS | _OBJECTS
    if name not in kinds:
        raise OptionError(f"is {name!r}", option="kind", remedy=f"Supported are {', '.join(map(repr, KINDS))}.")
    module, cls = kinds[name]
    return name, getattr(importlib.import_module(f"{_PLACE}.{module}"), cls)


def _refuse_paths(source: object) -> None:
    """Refuse several paths, which would be converted as texts: a list is a dataset of what is in it."""
    if not isinstance(source, list | tuple) or not all(isinstance(one, str | os.PathLike) for one in source):
        return
    if source and all(isinstance(one, os.PathLike) or os.path.exists(one) for one in source):
        raise OptionError(
            f"a {type(source).__name__} of {len(source)} paths is no source, {os.fspath(source[0])!r:.200} first",
            remedy="Pass the folder that they are in, or a pattern of braces for their names, as 'part-{0..9}.csv' or "
            "'{a,b}.csv' is one; or convert each, and put the results together with gdsload.merge.",
        )


def recognise(path: str) -> str:
    """The kind of what is at a path.

    Raises:
        DatasetNotFoundError: if there is nothing.
        FormatError: if it is neither a file nor a folder, or a folder cannot be read.
        OptionError: if it cannot be found out.
    """
    refuse_no_path(path)
    if (files := expanded(path)) is not None:
        for file in files:
            check_file(file)
        found = set().union(*map(_by_file, files)) or _texts(files)
    elif not os.path.exists(path):
        if ":" in path and os.sep not in path:
            return "torch"
        remedy = _BRACES if any(sign in path for sign in "*?[") else "Pass the path of what is to be converted."
        raise DatasetNotFoundError("there is nothing", file=path, remedy=remedy)
    elif os.path.isdir(path):
        found = _by_folder(path)
    else:
        check_file(path)
        found = _by_file(os.path.basename(path)) or _texts([path])
    if len(found) == 1:
        return found.pop()
    what = f"it could be any of {', '.join(sorted(found))}" if found else _unknown(path)
    remedy = f"Pass `kind=`, one of {', '.join(map(repr, sorted(found) or KINDS))}."
    raise OptionError(
        f"the kind of {path!r} cannot be recognised: {what}", remedy=remedy if found else f"{remedy} {WAYS_OUT}"
    )


def _unknown(path: str) -> str:
    """An error text for a path with no known file: the endings of names there."""
    is_folder = os.path.isdir(path)
    names = [name for _, name in islice(names_below(path), _NAMES_LOOKED_AT)] if is_folder else [os.path.basename(path)]
    endings = Counter(os.path.splitext(name.lower())[1][:40] or "names without an ending" for name in names)
    if not names:
        return "all its files are hidden, or kept by other programs beside data" if entries_in(path) else "it is empty"
    common = ", ".join(f"{ending} ({count})" for ending, count in endings.most_common(_ENDINGS_SHOWN))
    more = ", …" if len(endings) > _ENDINGS_SHOWN else ""
    found = f"none of its files is known; it has {common}{more}"
    return f"{found}; {_JSON}" if ".json" in endings else found


def _by_object(source: object) -> str:
    """The kind of an object: Hugging Face's, unless it has a transform of the user's; a table; arrays; or torch's."""
    from gdsload.conversion.sources.memory_tables import is_mapping_of_arrays, is_table  # needs torch

    kind, form = type(source), getattr(source, "format", None)
    if (kind.__module__, kind.__name__) == ("datasets.dataset_dict", "DatasetDict"):
        return "huggingface"
    if (kind.__module__, kind.__name__) == ("datasets.arrow_dataset", "Dataset"):
        return "huggingface" if isinstance(form, dict) and form["type"] != "custom" else "torch"
    if is_table(source):
        return "table"
    return "arrays" if is_mapping_of_arrays(source) else "torch"


def _texts(names: Iterable[str]) -> set[str]:
    """Texts are a dataset where there is nothing else; beside other files they are notes."""
    return {"text"} if any(name.lower().endswith((".txt", ".text")) for name in names) else set()


def _by_file(name: str) -> set[str]:
    name = _NUMBERED.sub("", name.lower())  # name.tfrecord-00000-of-00010
    found = {kind for suffix, kind in _SUFFIXES.items() if name.endswith(suffix)}
    return found | {"idx"} if _IDX.search(name) else found


def _by_folder(path: str) -> set[str]:
    refuse_logged(path)
    names = names_in(path)
    marks = {kind for mark, kind in _MARKS.items() if os.path.lexists(os.path.join(path, mark))}
    if "index.json" in names and any(name.startswith("chunk-") and name.endswith(".bin") for name in names):
        marks.add("litdata")
    if "meta" in names and os.path.exists(os.path.join(path, "meta", "info.json")):
        marks.add("lerobot")
    marks |= _of_objects(path, names)
    if marks:  # files of a library's own format are no dataset by themselves
        return marks
    # There may be folders of splits, with folders in them.
    inner = _folders_in([path]), _folders_in(_folders_in([path]))
    levels = [names, *(list(islice(chain.from_iterable(map(names_in, one)), _LOOKED_AT)) for one in inner)]
    kinds = [set[str]().union(*map(_by_file, level)) for level in levels]
    if any(map(_is_picture, chain(*levels))):
        # A table may name the pictures. Otherwise either kind would leave the other one's files out.
        tables = [os.path.join(path, name) for name in names if _by_file(name) == {"csv"}]
        below = (kinds[1] | kinds[2]) - {"csv"}
        return kinds[0] if any(map(_names_pictures, tables)) else kinds[0] | below | {"images"}
    found: set[str] = set()
    for level in kinds:
        if found - {"csv"}:
            break
        found |= level
    if found:
        return found
    deep = (_by_file(name) for _, name in islice(names_below(path), _LOOKED_AT))  # columns may be folders, too
    return set().union(*deep) - {"csv"} or _texts(chain(*levels))


def _is_picture(name: str) -> bool:
    return name.lower().endswith(PICTURES)


def _of_objects(path: str, names: list[str]) -> set[str]:
    """The kinds of images with boxes that a folder may have, by the files that describe them."""
    below = [name for name in names if name == "annotations" or split_words(name)]
    inner = {name: names_in(folder) for name in below if os.path.isdir(folder := os.path.join(path, name))}
    found = {"coco" for listed in (names, *inner.values()) if any(_ANNOTATIONS.search(name) for name in listed)}
    described = any(name.lower().endswith((".yaml", ".yml")) for name in names)
    for name, listed in ("", names), *inner.items():
        folder = os.path.join(path, name)
        layout = {"images", "labels"} <= set(map(str.lower, listed))
        texts = _may_have_boxes(folder, "labels") if layout else _may_have_boxes(folder, "images", listed)
        if (layout and (described or _lacks_pictures_in_labels(folder, listed))) or _are_boxes(texts):
            found.add("yolo")
    base = base_of(path)
    if base != path and _are_boxes(
        _may_have_boxes(base, "labels")
    ):  # a folder of images, whose labels are in the folder beside it
        found.add("yolo")
    return found


def _lacks_pictures_in_labels(folder: str, listed: list[str]) -> bool:
    """Return whether pictures are in `images` and not in `labels`, in any case, so that the two are no classes."""
    found = {}
    for name in listed:
        if name.lower() in ("images", "labels") and os.path.isdir(place := os.path.join(folder, name)):
            below = islice(names_below(place), _NAMES_LOOKED_AT)
            found[name.lower()] = any(_is_picture(one) for _, one in below)
    return found == {"images": True, "labels": False}


def _may_have_boxes(folder: str, below: str, names: Iterable[str] = ()) -> Iterator[tuple[str, str]]:
    """The texts with these names in a folder, and those below another in it; each with its image, less the ending.

    The image is beside its text, or, if the other folder is `labels`, at the same place below `images`.
    """
    root = os.path.join(folder, below)
    there = islice(names_below(root), _NAMES_LOOKED_AT) if os.path.isdir(root) else ()
    for place, name in chain(((folder, name) for name in names), there):
        if name.lower().endswith(".txt"):
            image = os.path.join(folder, "images", os.path.relpath(place, root), os.path.splitext(name)[0])
            yield os.path.join(place, name), os.path.normpath(image)


def _are_boxes(texts: Iterable[tuple[str, str]]) -> bool:
    """Return whether some of these texts are called as images are, and their first lines are boxes."""
    endings = [ending for one in PICTURES for ending in (one, one.upper())]
    named = (text for text, image in islice(texts, _LOOKED_AT) if any(os.path.exists(image + one) for one in endings))
    # None is of an image without objects, which has an empty text.
    boxes = list(islice((found for found in map(has_boxes, named) if found is not None), _TEXTS_LOOKED_AT))
    return bool(boxes) and all(boxes)


def _names_pictures(table: str) -> bool:
    """Return whether a table names pictures that are beside it, or in folders there."""
    with suppress(OSError, FormatError), open_file(table) as file:
        cells = re.split(r'[,;\t\r\n"]+', file.read(_LOOKED_AT_BYTES).decode("utf-8", "replace"))
        # A name in an untrusted table is only asked for here, never opened.
        named = (cell for cell in cells if _is_picture(cell) and "\0" not in cell)
        return any(os.path.isfile(os.path.join(os.path.dirname(table), cell)) for cell in islice(named, _LOOKED_AT))
    return False


def _folders_in(folders: Iterable[str]) -> Iterator[str]:
    """The folders of the dataset's in some folders, each once, however many links lead to it."""
    found = set[tuple[int, int]]()
    for entry in chain.from_iterable(map(entries_in, folders)):
        if not is_passed_over(entry.name) and is_folder(entry):
            status = entry.stat()
            if (key := (status.st_dev, status.st_ino)) not in found:
                found.add(key)
                yield entry.path
