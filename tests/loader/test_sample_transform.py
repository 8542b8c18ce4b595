"""`sample_transform`: each sample by itself, many at once, with random numbers that depend on its place alone."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.utils.data import default_collate

import gdsload
from gdsload import LoaderClosedError, Memory, OptionError, PerSample, ReadError
from gdsload.testing import fingerprint
from gdsload.transforms import Cast
from tests.loader.taking import ORDERS, begin, noisy_sample

MODULE = """
    import os, random, threading
    import numpy as np
    import torch

    def odd(x):  # strides of few elements, conjugate and negative views: no plain memory
        return {"one": x[::2][:1], "none": x[::3][:0], "conj": torch.complex(x, x + 1).conj(),
                "neg": torch.complex(x, x).conj().imag}

    def draw(sample, generator):
        return {
            "x": sample["x"], "own": torch.rand((), generator=generator), "torch": torch.rand(2),
            "numpy": np.random.rand(), "python": random.random(),
            "pid": os.getpid(), "threads": torch.get_num_threads(), **odd(sample["x"].float()),
        }


    class Odd(Exception):
        def __init__(self, what, why):
            super().__init__(f"{what}, {why}")

    class Held(Exception):
        def __init__(self, what):
            super().__init__(what)
            self.lock = threading.Lock()

    def fail(sample):
        if sample["x"][0] == 100:
            raise Odd("this", "that")
        if sample["x"][0] == 930:
            raise Held("that one")
        if sample["x"][0] == 970:
            os.kill(os.getpid(), 9)
        return {"x": 1 / (sample["x"][0] - 537).item()}
"""


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder with a module that worker processes can import, too."""
    path = tmp_path_factory.mktemp("modules")
    (path / "sample_functions.py").write_text(textwrap.dedent(MODULE))
    return path


@pytest.fixture
def functions(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    import sample_functions

    return sample_functions


@pytest.fixture
def run_script(plain, folder, tmp_path):
    """Runs a program that makes loaders, with `loader(function)`, whose processes call a function."""
    begin = f"""
        import os, signal, gdsload, sample_functions
        def loader(function):
            calls = gdsload.PerSample(function, workers=1, processes=True)
            return gdsload.DataLoader({str(plain)!r}, 10, device="cpu", sample_transform=calls)
    """
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(folder)])}

    def run(script):
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(begin) + textwrap.dedent(script))
        command = [sys.executable, str(path)]
        return subprocess.run(command, capture_output=True, text=True, timeout=100, env=environ, check=False)

    return run


def summary(sample):
    """Something of each field, of one shape."""
    return {
        "image": sample["image"] * 2, "label": sample["label"], "flag": sample["flag"].numpy(),
        "points": (sample["points"].sum(0), len(sample["codes"])), "text": sample["text"], "blob": len(sample["blob"]),
    }  # fmt: skip


class TestSamples:
    @pytest.mark.parametrize(("order", "batch_size"), [(order, 16) for order in ORDERS] + [(ORDERS[-1], 1)], ids=str)
    def test_they_are_those_of_the_dataset_put_together_as_torch_does(self, load, rich, order, batch_size):
        dataset = gdsload.ShardDataset(rich)
        loader = load(rich, batch_size, sample_transform=summary, **order)
        plain = load(rich, batch_size, with_index=True, fields=["label"], **order)
        for made, batch in zip(loader, plain, strict=True):
            samples = [dataset[index] for index in batch["index"].tolist()]
            assert fingerprint(made) == fingerprint(default_collate([summary(sample) for sample in samples]))

    def test_each_has_its_index_if_that_is_asked_for(self, load, plain):
        loader = load(plain, 64, "full", with_index=True, sample_transform=lambda sample: sample)
        for batch in loader:
            assert torch.equal(batch["index"].int(), batch["x"][:, 0])

    def test_windows_subsets_and_lists_of_transforms(self, load, plain):
        windows = gdsload.Windows(gdsload.ShardDataset(plain), 5, 2)
        loader = load(
            torch.utils.data.Subset(windows, [3, 100, 7]), 3, as_tuple=["x", "last"],
            sample_transform=[Cast("x", torch.float64), lambda sample: {**sample, "last": sample["x"][-1, 0]}],
        )  # fmt: skip
        ((x, last),) = loader
        assert x.dtype == torch.float64
        assert x[:, :, 0].tolist() == [[6.0, 7, 8, 9, 10], [200, 201, 202, 203, 204], [14, 15, 16, 17, 18]]
        assert last.tolist() == [10, 204, 18]

    def test_a_field_may_be_called_index(self, load, tmp_path):
        with gdsload.ShardWriter(tmp_path / "d") as writer:
            writer.write_batch({"index": torch.arange(5, 15)})
        (batch,) = load(tmp_path / "d", 10, sample_transform=lambda sample: sample)
        assert batch["index"].tolist() == list(range(5, 15))


class TestRandomNumbers:
    def test_processes_give_what_threads_give(self, load, plain, functions, soon):
        """torch's draws are those of threads; all are the same whichever process gets which samples."""
        threads = list(load(plain, 250, "full", sample_transform=functions.draw))
        loader = load(plain, 250, "full", sample_transform=PerSample(functions.draw, processes=True, workers=2))
        found = []
        for _ in range(2):
            loader.set_epoch(0)
            found.append(list(loader))
        pids = {pid for batches in found for batch in batches for pid in batch.pop("pid").tolist()}
        assert list(map(fingerprint, found[0])) == list(map(fingerprint, found[1]))
        for mine, other in zip(threads, found[0], strict=True):
            for name in ("x", "own", "torch", "one", "none", "conj", "neg"):
                assert fingerprint(mine[name]) == fingerprint(other[name])
        numbers = torch.cat([batch[name] for batch in found[0] for name in ("numpy", "python")])
        assert len(set(numbers.tolist())) == 2000
        assert 1 <= len(pids - {os.getpid()}) == len(pids) <= 2
        assert {one for batch in found[0] for one in batch["threads"].tolist()} == {1}
        loader.close()
        soon(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))

    def test_each_of_torchs_ways_to_draw(self, load, plain):
        def draw(sample):
            ones = torch.ones(4)
            return (
                torch.rand(3), torch.randn(3), torch.randint(0, 100, (3,)), torch.randperm(9), torch.normal(0.0, 1.0, (3,)),
                torch.bernoulli(ones / 2), torch.multinomial(ones, 2), torch.rand_like(ones), torch.randn_like(ones),
                torch.randint_like(ones, 100), torch.empty(2).normal_(), torch.empty(2).exponential_(), torch.poisson(ones),
                torch.empty(2).uniform_(), torch.empty(2).random_(), torch.distributions.Beta(1.0, 2.0).sample(),
            )  # fmt: skip

        torch.manual_seed(1)
        first = next(iter(load(plain, 20, sample_transform=draw)))
        torch.manual_seed(2)
        assert fingerprint(next(iter(load(plain, 20, sample_transform=draw)))) == fingerprint(first)
        assert all(len(torch.unique(part, dim=0)) > 1 for part in first)

    def test_a_generator_of_the_users_own_is_left_to_him(self, load, plain):
        own, again = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
        loader = load(plain, 1000, sample_transform=PerSample(lambda _: torch.rand((), generator=own), workers=1))
        assert next(iter(loader)).tolist() == [torch.rand((), generator=again).item() for _ in range(1000)]


class TestAtOnce:
    def test_samples_of_one_batch_are_transformed_at_the_same_time(self, load, plain):
        meeting = threading.Barrier(4, timeout=20)

        def meet(sample):
            meeting.wait()
            return sample

        epoch = iter(load(plain, 8, sample_transform=PerSample(meet, workers=4)))
        assert len(next(epoch)["x"]) == 8
        meeting.abort()  # or what is closed while fewer than four are in it would wait for the others

    def test_what_it_makes_counts_as_ahead(self, load, plain):
        """A sample of 32 bytes becomes 100 KiB: with a budget of 1 MiB ten of them are ahead, and what is being made."""
        made = []

        def grow(sample):
            made.append(1)
            return torch.zeros(25600)

        loader = load(plain, 1, sample_transform=PerSample(grow, workers=1), memory=Memory(prefetch="1MiB"))
        _held = begin(loader, 20)
        time.sleep(0.2)
        assert len(made) <= 20 + 10 + 8


class TestErrors:
    def test_in_processes(self, load, plain, functions):
        """For those of classes that pickle does not take another error says what they said; a killed one is no hang."""
        options = {"sample_transform": PerSample(functions.fail, processes=True, workers=1)}
        iterator = iter(load(plain, 50, **options))
        for before, bad, kind, match in (
            (2, 100, RuntimeError, "^Odd: this, that"),
            (7, 537, ZeroDivisionError, "division by zero"),
            (7, 930, RuntimeError, "^Held: that one"),
        ):
            assert len([next(iterator) for _ in range(before)]) == before
            with pytest.raises(kind, match=match) as caught:
                next(iterator)
            assert any(f"for sample {bad} of the dataset" in note for note in caught.value.__notes__)
            assert f"in the batch of step {bad // 50} of epoch 0" in caught.value.__notes__[-1]
        with pytest.raises(ReadError, match=r"was lost: .*SIGKILL.*lower `PerSample"):
            next(iterator)

    @pytest.mark.parametrize(
        ("transform", "raised", "note"),
        [
            (lambda sample: torch.zeros(int(sample["x"][0])), RuntimeError, "tensors of one shape"),
            (lambda sample: object(), TypeError, "numbers or texts, in dicts or tuples of one structure"),
        ],
    )
    def test_what_cannot_be_put_together(self, load, plain, transform, raised, note):
        with pytest.raises(raised) as caught:
            next(iter(load(plain, 10, sample_transform=transform)))
        assert note in caught.value.__notes__[0]
        assert "step 0 of epoch 0" in caught.value.__notes__[1]

    def test_closing_its_own_loader_is_no_hang(self, load, plain):
        loader = load(plain, 10, sample_transform=lambda _: loader.close())
        with pytest.raises((LoaderClosedError, TypeError)):
            list(loader)


class TestEnd:
    def test_a_loader_that_is_dropped_takes_its_threads_along(self, plain, threads, soon):
        loader = gdsload.DataLoader(plain, 10, device="cpu", sample_transform=noisy_sample)
        next(iter(loader))
        assert any(name.startswith("gdsload-sample") for name in threads())
        del loader
        soon(lambda: not threads())

    @pytest.mark.parametrize("forked", [False, True])
    def test_closing_in_the_middle_of_a_batch(self, load, plain, in_thread, soon, forked, ends_in_a_child):
        """It waits for the samples that are being transformed, and not for a whole batch."""
        begun, ended = [], []

        def slow(sample):
            begun.append(1)
            time.sleep(0.3)  # longer than the waiting thread takes to find out
            ended.append(1)
            return sample

        loader = load(plain, 40, sample_transform=PerSample(slow, workers=2))

        def close():
            consumer = in_thread(list, loader)
            soon(lambda: begun)
            loader.close()
            left = len(begun) - len(ended)
            failed = type(consumer.exception(timeout=20)) is LoaderClosedError
            if left or not failed or len(begun) > 20:
                os._exit(3) if forked else pytest.fail(f"{left} left of {len(begun)}")

        if forked:
            assert ends_in_a_child(close)
        else:
            close()

    @pytest.mark.slow
    def test_a_program_that_ends_in_an_epoch_ends_quietly(self, run_script):
        found = run_script("""
            if __name__ == "__main__":
                for batch in loader(sample_functions.draw):
                    break
                print("done")
        """)
        assert (found.returncode, found.stdout, found.stderr) == (0, "done\n", "")

    @pytest.mark.slow
    def test_processes_end_with_a_parent_that_is_killed(self, run_script, soon):
        found = run_script("""
            if __name__ == "__main__":
                batches = loader(sample_functions.draw)
                print(*{pid for batch in batches for pid in batch["pid"].tolist()}, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
        """)
        assert found.returncode == -signal.SIGKILL
        pids = list(map(int, found.stdout.split()))
        assert pids
        soon(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids))

    @pytest.mark.slow
    def test_a_script_without_a_guard_is_told_so(self, run_script):
        found = run_script("""
            def same(sample):
                return sample
            next(iter(loader(same)))
        """)
        assert found.returncode == 1
        assert 'Put the call under `if __name__ == "__main__":`' in found.stderr


class TestOptions:
    @pytest.mark.parametrize("made", ["a function", "an object of a class", "a partial"])
    @pytest.mark.parametrize("main", [{}, {"__file__": "<stdin>"}], ids=["notebook", "stdin"])
    def test_what_a_notebook_defines_cannot_go_to_processes(self, load, plain, monkeypatch, main, made):
        module = ModuleType("__main__")
        vars(module).update(main)
        exec(
            "def aug(sample):\n    return sample\nclass Aug:\n    def __call__(self, sample):\n        return sample\n",
            vars(module),
        )
        monkeypatch.setitem(sys.modules, "__main__", module)
        transform = {"a function": module.aug, "an object of a class": module.Aug(), "a partial": partial(module.aug)}
        with pytest.raises(OptionError, match=r"defined in a notebook.*Put it into a \.py file.*processes=False"):
            load(plain, 10, sample_transform=PerSample(transform[made], processes=True))
        assert len(list(load(plain, 10, sample_transform=transform[made]))) == 100
        load(plain, 10, sample_transform=PerSample(partial(round, "__main__"), processes=True))  # a text, no reference


def test_a_loader_says_which_way_bytes_go(plain):
    with gdsload.DataLoader(plain, 10, device="cpu", sample_transform=dict) as loader:
        assert "backend  host (asked for auto): samples are transformed and " in repr(loader)
        next(iter(loader))
        assert "\n  batches: samples are read, and gathered by processors\n" in str(loader.backend)
        assert set(loader.backend.bytes_by_path) == {"host"}


@pytest.mark.cuda
def test_a_loader_says_which_way_bytes_go_to_a_gpu(plain):
    with gdsload.DataLoader(plain, 10, device="cuda", sample_transform=dict) as loader:
        next(iter(loader))
        assert (loader.backend.asked, loader.backend.chosen) == ("auto", "host")
        assert "torch copies them to cuda:" in str(loader.backend)
        assert "from pinned memory" in str(loader.backend)
