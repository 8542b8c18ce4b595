"""Conversion on clusters of two workers: what comes out is what one process would have made."""

import os
from contextlib import contextmanager

import distributed
import numpy as np
import pytest
import ray

import gdsload
from gdsload.conversion.clusters import dask_executor, ray_executor
from gdsload.errors import OptionError
from gdsload.tools.cli import main
from tests.conversion.reading import content

MODULE = '''
import os, signal, time

def die_once(sample):
    """Lets the first process that is not the caller's die in the middle of a part."""
    if os.getpid() != int(os.environ["CALLER"]) and int(sample["y"]) == 333:
        try:
            os.close(os.open(os.environ["DEATHS"] + "/one", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return sample
        os.kill(os.getpid(), signal.SIGKILL)
    return sample

def die_always(sample):
    if os.getpid() != int(os.environ["CALLER"]) and int(sample["y"]) == 333:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample

def refuse(sample):
    if int(sample["y"]) == 333:
        raise ValueError("not this one")
    return sample
'''


@pytest.fixture(scope="session", autouse=True)
def functions(tmp_path_factory):
    """A module that workers can import, by whatever they are started."""
    folder = tmp_path_factory.mktemp("functions")
    (folder / "cluster_functions.py").write_text(MODULE)
    (folder / "deaths").mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(folder))
        patched.setenv("PYTHONPATH", os.pathsep.join([os.environ["PYTHONPATH"], str(folder)]))
        patched.setenv("CALLER", str(os.getpid()))
        patched.setenv("DEATHS", str(folder / "deaths"))
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        yield folder


@pytest.fixture
def deaths(functions):
    """Where a worker notes that it dies."""
    folder = functions / "deaths"
    for file in folder.iterdir():
        file.unlink()
    return folder


@pytest.fixture(scope="session")
def arrays(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arrays")
    np.save(folder / "x.npy", np.random.default_rng(0).integers(0, 1000, (1000, 6), dtype=np.int32))
    np.save(folder / "y.npy", np.arange(1000))
    return folder


@pytest.fixture(scope="session")
def wanted(arrays, tmp_path_factory):
    """The result of a conversion without a cluster: ten shards."""
    out = tmp_path_factory.mktemp("wanted") / "out"
    gdsload.convert(arrays, out, shard_bytes=3200, workers=1)
    return content(out)


@contextmanager
def dask():
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as found:
        yield "--dask", found.scheduler_address


@contextmanager
def local_ray():
    found = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        yield "--ray", found.address_info["gcs_address"]
    finally:
        ray.shutdown()


@pytest.fixture(scope="module", params=[dask, local_ray], ids=["dask", "ray"])
def options(request, functions):
    """The words of the command line that name a cluster of two worker processes."""
    with request.param() as found:
        yield found


def run(arrays, out, options, *more):
    return main(["convert", str(arrays), str(out), "--shard-bytes", "3200", *options, *more])


def test_nobody_there(monkeypatch):
    monkeypatch.setattr("gdsload.conversion.clusters._CONNECT_S", 1)
    for kind, connect, address in (
        ("Dask", dask_executor, "127.0.0.1:9"),
        ("Ray", ray_executor, "127.0.0.1:9"),
        ("Ray", ray_executor, "auto"),
    ):
        with pytest.raises(OptionError, match=f"there is no {kind} cluster at '{address}'"), connect(address):
            pass


def test_the_bytes_are_those_of_a_local_conversion(options, arrays, wanted, tmp_path, capsys):
    assert run(arrays, tmp_path / "out", options) == 0
    shards = len(list((tmp_path / "out").glob("*.safetensors")))
    assert shards > 5
    assert f"1000 samples, 132 KiB in {shards} shards" in capsys.readouterr().out
    assert content(tmp_path / "out") == wanted


def test_relative_paths(options, arrays, wanted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(os.path.relpath(arrays), "out", options) == 0
    assert content("out") == wanted


def test_the_work_of_a_lost_worker_is_done_by_another(options, arrays, tmp_path, deaths):
    arguments = ("--map", "cluster_functions:die_once")
    assert run(arrays, tmp_path / "out", options, *arguments) == 0
    assert [file.name for file in deaths.iterdir()] == ["one"]
    assert run(arrays, tmp_path / "local", (), *arguments, "--workers", "1") == 0  # nobody dies a second time
    assert content(tmp_path / "out") == content(tmp_path / "local")


def test_a_part_that_kills_every_worker_ends_it_and_the_rest_is_kept(options, arrays, tmp_path, capsys):
    arguments = ("--map", "cluster_functions:die_always")
    assert run(arrays, tmp_path / "out", options, *arguments) == 1
    assert "a worker was lost" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    # Here nobody dies, so that it goes on where the cluster could not.
    assert run(arrays, tmp_path / "out", (), *arguments, "--workers", "1") == 0
    assert "parts were there from an interrupted run" in capsys.readouterr().out
    assert len(gdsload.ShardDataset(tmp_path / "out")) == 1000


def test_a_bad_sample_is_named_as_ever(options, arrays, tmp_path, capsys):
    arguments = ("--map", "cluster_functions:refuse")
    assert run(arrays, tmp_path / "out", options, *arguments) == 1
    cause = "map 'cluster_functions:refuse' failed: ValueError: not this one"
    assert f"cannot be converted\ncause: {cause}" in capsys.readouterr().err
    assert run(arrays, tmp_path / "out", options, *arguments, "--on-error", "skip") == 0
    assert "1 sample was skipped" in capsys.readouterr().out
