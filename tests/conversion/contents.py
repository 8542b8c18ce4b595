"""Contents of files as bytes: pictures, arrays, and tar files."""

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ORIENTATION = 0x0112


class Evil:
    """Ends the process that unpickles it."""

    def __reduce__(self):
        return os.abort, ()


def picture(image, codec="PNG", orientation=None):
    """An image of Pillow's, or its pixels, maybe with an orientation in its EXIF data."""
    stream, exif, options = io.BytesIO(), Image.Exif(), {}
    if orientation is not None:
        exif[ORIENTATION] = orientation
        options = {"tiffinfo": {ORIENTATION: orientation}} if codec == "TIFF" else {"exif": exif}
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    image.save(stream, codec, **options)
    return stream.getvalue()


def npy(array, **options):
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def archive(members, mode="w"):
    """A tar file: of a member its name and content, or its name, type and what it leads to."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode, format=tarfile.PAX_FORMAT) as tar:
        for name, *content in members:
            info = tarfile.TarInfo(name)
            if len(content) == 2:
                info.type, info.linkname = content
                tar.addfile(info)
            else:
                info.size = len(content[0])
                tar.addfile(info, io.BytesIO(content[0]))
    return stream.getvalue()


def pack(path, members, mode="w"):
    Path(path).write_bytes(archive(members, mode))
    return str(path)


def tfrecord(content):
    """A record of a TFRecord file: its length and its content, each with a checksum."""
    checksum = pytest.importorskip("google_crc32c").value
    checked = b""
    for part in (len(content).to_bytes(8, "little"), content):
        value = checksum(part)
        checked += part + (((value >> 15 | value << 17) & 0xFFFFFFFF) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")
    return checked
