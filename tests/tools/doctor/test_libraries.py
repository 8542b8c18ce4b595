"""Where libcufile is found, without loading anything."""

from __future__ import annotations

import dataclasses

from gdsload.tools.doctor.libraries import find_libraries
from tests.machines import Made


def test_libraries_in_wheels_in_the_linkers_cache_and_by_the_path(made: Made):
    made.write("/site/nvidia/cu13/lib/libcufile.so.0")
    made.write("/site/nvidia_cufile-1.20.0.107.dist-info/METADATA")
    made.write("/opt/cuda/lib/libcufile.so.0")
    made.write("/odd/libcufile.so.0")
    made.write("/etc/ld.so.cache", b"glibc-ld.so.cache1.1\0\1\2libc.so.6\0/odd/libcufile.so.0\0/gone/libcufile.so.0\0")
    made.environ["LD_LIBRARY_PATH"] = "/opt/cuda/lib:relative"
    found = find_libraries(dataclasses.replace(made.system(), site_folders=("", "/site")))
    assert found == [
        ("/site/nvidia/cu13/lib/libcufile.so.0", "1.20.0.107"),
        ("/opt/cuda/lib/libcufile.so.0", ""),
        ("/odd/libcufile.so.0", ""),
    ]
