"""Tar files of members: their names and contents."""

import io
import tarfile


def pack(path, members, mode="w", fmt=tarfile.PAX_FORMAT):
    with tarfile.open(path, mode, format=fmt) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return str(path)
