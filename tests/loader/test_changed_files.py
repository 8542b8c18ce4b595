"""Shards that somebody overwrites in place while a loader reads them: no wrong batch, or an error in that very epoch."""

import os
import time

import pytest

import gdsload
from gdsload import FileChangedError
from gdsload.shards.identity import Watch


def overwrite(path):
    """Other samples at their place, and the time of the last write put back."""
    before = os.stat(path)
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 8000)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def run(loader, folder, at, number):
    """An epoch in which a shard is overwritten after step `at`: how many batches were right, wrong, and the error."""
    right = wrong = 0
    time.sleep(0.01)  # file times tick every 1 to 4 ms
    try:
        for step, batch in enumerate(loader):
            good = bool((batch["x"] == batch["index"][:, None]).all())
            right, wrong = right + good, wrong + (not good)
            if step == at:
                overwrite(folder / f"shard-{number:05d}.safetensors")
    except FileChangedError as error:
        return right, wrong, error
    return right, wrong, None


@pytest.mark.parametrize(("at", "number"), [(0, 0), (0, 3), (40, 1), (60, 2), (95, 3), (120, 0), (122, 3)])
def test_no_batch_is_made_of_what_was_written_over_a_shard(load, own_plain, mmap, order, at, number):
    loader = load(own_plain, 8, with_index=True, mmap=mmap, memory=gdsload.Memory(prefetch=1), **order)
    right, wrong, error = run(loader, own_plain, at, number)
    assert wrong == 0
    assert right == 125 if error is None else right > at
    if error is None:  # the shard's samples were all there already
        assert at > 0
    else:
        assert error.file == str(own_plain / f"shard-{number:05d}.safetensors")
        assert "the shard was written to" in str(error)


@pytest.mark.parametrize("at", [0, 60, 115])
def test_a_change_that_nobody_had_the_time_to_see_is_an_error_at_the_epochs_end(load, own_plain, monkeypatch, at):
    real = Watch.check

    def check(self, files, **options):
        self._paid = 1e18  # looking has used up its share of the time for good, once each file was looked at
        real(self, files, **options)

    monkeypatch.setattr(Watch, "check", check)
    loader = load(own_plain, 8, with_index=True, memory=gdsload.Memory(prefetch=1))
    iterator = iter(loader)
    before = [next(iterator) for _ in range(at or 1)]
    time.sleep(0.01)
    overwrite(own_plain / "shard-00003.safetensors")
    found = []
    with pytest.raises(FileChangedError, match="shard-00003.*the shard was written to"):
        found.extend(iterator)
    assert len(before) + len(found) <= 125
    with pytest.raises(FileChangedError, match="shard-00003"):
        next(iterator)


def test_an_epoch_that_looks_often_enough_looks_at_nothing_in_the_end(load, plain, monkeypatch):
    looked, real = [], Watch.check_now
    monkeypatch.setattr(Watch, "check_now", lambda self, files: (looked.append(files.tolist()), real(self, files)))
    assert len(list(load(plain, 8))) == 125
    assert looked == [[]]


@pytest.mark.parametrize(
    "change", [lambda shard: os.link(shard, f"{shard}.backup"), lambda shard: os.chmod(shard, 0o400)]
)
def test_backups_and_rights_end_an_epoch_that_goes_on_when_the_dataset_is_opened_again(load, own_plain, mmap, change):
    loader = load(own_plain, 8, with_index=True, mmap=mmap, memory=gdsload.Memory(prefetch=1))
    iterator, found = iter(loader), []
    for _ in range(20):
        found += next(iterator)["index"].tolist()
    state = loader.state_dict()
    change(own_plain / "shard-00003.safetensors")
    with pytest.raises(FileChangedError, match=r"shard-00003.*was written to, or its rights or links were changed"):
        list(iterator)
    again = load(own_plain, 8, with_index=True, mmap=mmap)
    again.load_state_dict(state)
    for batch in again:
        found += batch["index"].tolist()
    assert found == [*range(1000)]
