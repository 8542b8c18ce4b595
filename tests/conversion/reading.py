"""Samples of sources, and files of datasets, as tests compare them."""

from pathlib import Path

from gdsload.conversion.part import samples_of


def items_of(source, target=2**20):
    """All items of a source, cut into parts of about so many bytes."""
    return [item for part in source.parts(target) for item in source.read(part)]


def made_by(source, target=2**20):
    """The contents of items, samples or batches; made while their file is open, as the protocol has it."""
    return [item.make() for part in source.parts(target) for item in source.read(part)]


def rows_of(source, target=2**20):
    """All samples, one by one."""
    return [
        one.make()
        for part in source.parts(target)
        for item in source.read(part)
        for one in (samples_of(item) if item.count is not None else [item])
    ]


def plain(sample):
    """A sample whose arrays and tensors are Python's numbers and lists."""
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in sample.items()}


def content(folder):
    """The bytes of all files of a dataset."""
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def hidden(folder):
    return [path.name for path in Path(folder).iterdir() if path.name.startswith(".")]
