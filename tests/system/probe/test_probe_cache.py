"""Remembered probes: only an equal key is a hit, and nothing that lies in the cache can do harm."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gdsload.system.probe import CufileProbe
from gdsload.system.probe import probe_cache as cache
from gdsload.system.probe.library import find_libraries
from gdsload.system.probe.probe import cache_key
from tests.machines import WORKING_PROBE, Made

KEY = {"library": ["a"], "mount": ["b"], "gpus": [], "device": "cuda:0", "driver": "570"}


def only(folder: Path) -> Path:
    [file] = folder.glob("*.json")
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    cache.store(str(tmp_path / "c"), KEY, WORKING_PROBE)
    return tmp_path / "c"


def test_what_was_stored_comes_back(folder: Path):
    assert cache.load(str(folder), KEY) == WORKING_PROBE
    assert [name for name in os.listdir(folder) if name.startswith(".")] == []
    assert only(folder).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("part", [*KEY, "another"])
def test_a_key_that_differs_in_anything_is_a_miss(folder: Path, part: str):
    assert cache.load(str(folder), {**KEY, part: "changed"}) is None


def test_the_next_key_of_the_same_place_takes_the_place(folder: Path):
    cache.store(str(folder), {**KEY, "driver": "580"}, WORKING_PROBE)
    assert cache.load(str(folder), KEY) is None
    assert cache.load(str(folder), {**KEY, "driver": "580"}) is not None
    only(folder)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_a_miss_or_the_same_probe(folder: Path, data: st.DataObject):
    cache.store(str(folder), KEY, WORKING_PROBE)
    content = bytearray(only(folder).read_bytes())
    if data.draw(st.booleans()):
        content = bytearray(data.draw(st.binary(max_size=200)))
    else:
        at = data.draw(st.integers(0, 10_000)) % len(content)  # the length varies with the time in it
        content[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    only(folder).write_bytes(content)
    found = cache.load(str(folder), KEY)
    assert found is None or isinstance(found, CufileProbe)


@pytest.mark.parametrize(
    ("status", "life_s"), [("ok", 7 * 86400), ("failed", 3600), ("missing", 3600), ("timeout", 600), ("crashed", 600)]
)
def test_each_answer_has_its_life(tmp_path: Path, status: str, life_s: int):
    cache.store(str(tmp_path), KEY, CufileProbe(status))
    for age, hit in ((life_s - 60, True), (life_s + 60, False), (-3600, False)):
        tree = json.loads(only(tmp_path).read_text())
        only(tmp_path).write_text(json.dumps({**tree, "time": time.time() - age}))
        assert (cache.load(str(tmp_path), KEY) is not None) is hit


def test_a_link_is_not_followed(folder: Path, tmp_path: Path):
    name = only(folder)
    os.rename(name, tmp_path / "elsewhere")
    name.symlink_to(tmp_path / "elsewhere")
    assert cache.load(str(folder), KEY) is None


def test_where_nothing_can_be_written_nothing_is_remembered_and_nothing_raised(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for folder in (None, str(tmp_path / "file" / "below"), "/proc/none"):
        cache.store(folder, KEY, WORKING_PROBE)
        assert cache.load(folder, KEY) is None
        with cache.locked(folder, KEY, 1.0):
            pass


def test_a_lock_that_is_held_for_ever_is_not_waited_for(folder: Path):
    start = time.monotonic()
    with cache.locked(str(folder), KEY, 1.0), cache.locked(str(folder), KEY, 0.2):
        assert 0.2 <= time.monotonic() - start < 1.0


def test_who_asks_something_else_does_not_wait(folder: Path):
    start = time.monotonic()
    with cache.locked(str(folder), KEY, 1.0), cache.locked(str(folder), {**KEY, "device": "cuda:1"}, 10.0):
        assert time.monotonic() - start < 5.0


@pytest.mark.parametrize(
    ("had", "asked", "hit"),
    [((60, 20), (60, 20), True), ((60, 20), (20, 20), True), ((20, 20), (60, 20), False), ((60, 1), (60, 20), False)],
)
def test_no_answer_within_less_time_says_nothing(folder: Path, had: tuple, asked: tuple, hit: bool):
    cache.store(str(folder), KEY, CufileProbe("timeout"), had)
    assert (cache.load(str(folder), KEY, asked) is not None) is hit
    cache.store(str(folder), KEY, WORKING_PROBE, had)
    assert cache.load(str(folder), KEY, asked) == WORKING_PROBE


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"XDG_CACHE_HOME": "/x"}, "/x/gdsload"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/gdsload"),
        ({"HOME": "/h"}, "/h/.cache/gdsload"),
        ({}, None),
    ],
)
def test_where_the_cache_is(environ: dict[str, str], folder: str | None):
    assert cache.cache_folder(environ) == folder


def change_driver(made: Made):
    made.write("/proc/driver/nvidia/version", "NVRM version: other 580.1")


def change_parameters(made: Made):
    made.write("/proc/driver/nvidia/params", "other")


def change_mount(made: Made):
    made.mounts("40 27 259:1 / /data rw - ext4 /dev/nvme0n1p1 rw")


def change_udev(made: Made):
    made.remove("/run/udev/data/b259:1")


def change_config(made: Made):
    made.write("/etc/cufile.json", "{}")


def change_library(made: Made):
    made.write("/usr/lib/x86_64-linux-gnu/libcufile.so.1.15.1", "longer")


def change_nvfs(made: Made):
    made.remove("/proc/driver/nvidia-fs/version")


def change_gpu(made: Made):
    made.write("/proc/driver/nvidia/gpus/0000:03:00.0/information", "Model: another")


def change_environment(made: Made):
    made.environ["CUFILE_FORCE_COMPAT_MODE"] = "true"


def change_boot(made: Made):
    made.write("/proc/sys/kernel/random/boot_id", "another")


@pytest.mark.parametrize(
    "change",
    [
        change_driver, change_parameters, change_mount, change_udev, change_config, change_library, change_nvfs,
        change_gpu, change_environment, change_boot,
    ],
)  # fmt: skip
def test_the_key_has_all_that_an_answer_depends_on(nvfs: Made, change):
    def key():
        system = nvfs.system()
        libraries = find_libraries(system.tree, nvfs.environ, system.site_folders)
        assert [library.version for library in libraries] == ["1.15.1"]
        return json.dumps(cache_key(system.tree, nvfs.environ, libraries, "/data/set", "cuda:0"))

    before = key()
    assert key() == before
    change(nvfs)
    assert key() != before


def test_libraries_in_wheels_in_the_linkers_cache_and_by_the_path(made: Made):
    made.write("/site/nvidia/cu13/lib/libcufile.so.0")
    made.write("/site/nvidia_cufile-1.20.0.107.dist-info/METADATA")
    made.write("/opt/cuda/lib/libcufile.so.0")
    made.write("/odd/libcufile.so.0")
    made.write("/etc/ld.so.cache", b"glibc-ld.so.cache1.1\0\1\2libc.so.6\0/odd/libcufile.so.0\0/gone/libcufile.so.0\0")
    tree = made.system().tree
    found = find_libraries(tree, {"LD_LIBRARY_PATH": "/opt/cuda/lib:relative"}, ["", "/site"])
    assert [(library.path, library.version) for library in found] == [
        ("/site/nvidia/cu13/lib/libcufile.so.0", "1.20.0.107"),
        ("/opt/cuda/lib/libcufile.so.0", ""),
        ("/odd/libcufile.so.0", ""),
    ]
