"""Which backend is chosen: the one that was asked for or none, and by evidence where the choice is ours. No GPU needed."""

from contextlib import nullcontext
from dataclasses import replace
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload import BackendUnavailableError
from gdsload.backends import registry, select
from gdsload.backends.base import BackendStatus
from gdsload.backends.gds import engines as gds_engines
from gdsload.backends.gds import gds
from gdsload.backends.gds.gds import GdsBackend
from gdsload.backends.gds.slots import Slots
from gdsload.backends.host import HostBackend
from gdsload.backends.mapped import MappedBackend
from gdsload.backends.probed import ProbedBackend
from gdsload.backends.request import BackendRequest, BackendRow, one_way
from gdsload.backends.select import choose, dma_is_possible, expected, preflight, reads_in_place
from gdsload.backends.tiers.tiered import Tiered
from gdsload.shards.catalog import open_catalog
from gdsload.shards.local_files import LocalFiles
from gdsload.system.pool import Pool
from gdsload.system.probe import CufileProbe
from gdsload.system.probe.result import Status
from gdsload.system.probe.tree import Tree
from tests.backends.extents import files_in
from tests.drives import files_of

CPU, META, GPU = torch.device("cpu"), torch.device("meta"), torch.device("cuda:0")
NAMES = ("auto", "host", "mapped", "bounce", "gds")
BY_DMA = CufileProbe("ok", nvfs_reads=2, p2p_reads=0, posix_reads=0)
BY_CPU = CufileProbe("ok", nvfs_reads=0, p2p_reads=0, posix_reads=2)
STATUSES = get_args(Status)


def settled(chosen):
    """The backend that was chosen, once cuFile has answered."""
    cold = getattr(chosen.backend, "far", chosen.backend)
    if isinstance(cold, ProbedBackend):
        cold.settle()
    return chosen


class Probing:
    """Answers instead of cuFile, for all drives alike or by the file's name, and notes what it was asked."""

    def __init__(self, found=None, **by_name):
        self.found, self.by_name, self.asked = found, by_name, []

    def __call__(self, path, device):
        self.asked.append((path, device))
        return self.by_name.get(path.rpartition("/")[2][0], self.found)


def unasked(path, device):
    pytest.fail("cuFile was asked")


# --- before anything is opened ---

counts = st.none() | st.integers(0, 2)
probes = st.builds(CufileProbe, st.sampled_from(STATUSES), nvfs_reads=counts, p2p_reads=counts, posix_reads=counts)


@settings(derandomize=True, max_examples=100)
@given(st.sampled_from(NAMES), st.sampled_from([CPU, META, GPU]), st.booleans(), st.booleans(), probes)
def test_what_is_asked_for_by_name_is_used_or_refused(name, device, mapped, allow_compat, found):
    probe = Probing(found)
    needs = {"auto": True, "host": True, "mapped": device == GPU and mapped, "bounce": device == GPU}
    by_dma = bool(found.nvfs_reads or found.p2p_reads)
    needs["gds"] = device == GPU and found.status == "ok" and (by_dma or allow_compat)
    request = BackendRequest(name, device, allow_compat=allow_compat)
    try:
        answer = preflight(request, ["/data/a"], mapped=mapped, probe=probe)
    except BackendUnavailableError as error:
        assert not needs[name]
        assert error.remedy
    else:
        assert needs[name]
        assert answer is (found if name == "gds" else None)
    # It takes a process of its own: it is asked where that decides something.
    assert probe.asked == ([("/data/a", "cuda:0")] if name == "gds" and device == GPU else [])


NO_GPU = 'Pass `device="cuda"`, or leave `backend=` out.'
BROKEN = CufileProbe("failed", "so it ended", nvfs_reads=1)  # what was counted before that proves nothing
NO_DMA = "cuFile works here, but not by DMA: a trial read took the path "


@pytest.mark.parametrize(
    ("name", "device", "found", "message", "remedies"),
    [
        ("gds", CPU, None, "backend 'gds' needs a CUDA device, and the batches go to 'cpu'", [NO_GPU]),
        ("mapped", META, None, "backend 'mapped' needs a CUDA device, and the batches go to 'meta'", [NO_GPU]),
        ("mapped", GPU, None, "'mapped' cannot be used: the files are not mapped", ["Leave `mmap=False` out."]),
        ("gds", GPU, BROKEN, "cuFile cannot be used here: so it ended", ["gdsload doctor"]),
        ("gds", GPU, BY_CPU, f"{NO_DMA}cufile-posix", ["gdsload doctor", "Gds(compat=True)"]),
        ("gds", GPU, CufileProbe("ok"), f"{NO_DMA}unknown", ["gdsload doctor", "Gds(compat=True)"]),
    ],
)
def test_what_is_refused_says_why_and_what_helps(name, device, found, message, remedies):
    probe = unasked if found is None else Probing(found)
    with pytest.raises(BackendUnavailableError, match=message) as caught:
        preflight(BackendRequest(name, device), ["/data/a"], mapped=False, probe=probe)
    assert all(remedy in caught.value.remedy for remedy in remedies)
    assert ("compat" in caught.value.remedy) == ("Gds(compat=True)" in remedies)  # offered only where it helps


def test_mapped_on_rocm(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.0")
    with pytest.raises(BackendUnavailableError, match="pages of files cannot be registered for cuda") as caught:
        preflight(BackendRequest("mapped", GPU), ["/data/a"], mapped=True, probe=unasked)
    assert caught.value.remedy == 'Use `backend="bounce"`.'


BATCHES = replace(BY_DMA, batches=True)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"a": BY_DMA, "b": BY_DMA}, BY_DMA),
        ({"a": BATCHES, "b": BY_DMA}, BY_DMA),  # batches of reads are made where all drives take them
        ({"a": BY_DMA, "b": BATCHES}, BY_DMA),
        ({"a": BY_DMA, "b": BY_CPU}, "/data/b: cuFile works here, but not by DMA: .*cufile-posix"),
        ({"a": BY_CPU, "b": CufileProbe("failed", "no")}, "/data/b: cuFile cannot be used here: no"),
    ],
)
def test_gds_is_for_datasets_that_all_drives_of_can_be_read_by_it(answers, expected):
    probe, paths = Probing(**answers), ["/data/a", "/data/b"]
    refused = isinstance(expected, str)
    with pytest.raises(BackendUnavailableError, match=expected) if refused else nullcontext():
        assert preflight(BackendRequest("gds", GPU), paths, mapped=True, probe=probe) is expected
    assert probe.asked == [(path, "cuda:0") for path in paths]


def test_a_backend_of_another_library_is_checked_and_opened_as_it_says(choosing, files):
    def open_own(request, files, _found):
        return one_way(GdsBackend(files, request.device, engine=Engine), "own", "given", "by another engine")

    own = BackendRow(GdsBackend, True, open_own)
    assert preflight(BackendRequest(own, GPU), ["/data/a"], mapped=True, probe=unasked) is None
    with pytest.raises(BackendUnavailableError, match="backend 'gds' needs a CUDA device"):
        preflight(BackendRequest(own, CPU), ["/data/a"], mapped=True, probe=unasked)
    assert expected(BackendRequest(own, GPU)) == ("gds", "asked for by name")
    assert not reads_in_place(BackendRequest(own, GPU), mapped=True)
    chosen = choosing(BackendRequest(own, GPU), files)
    assert type(chosen.backend.engine) is Engine
    assert chosen.answer() == "own: every byte reaches the GPU by another engine"


# --- what will be chosen ---


@pytest.mark.parametrize(
    ("name", "device", "answer"),
    [
        ("auto", CPU, ("host", "batches are built in CPU memory")),
        ("auto", torch.device("mps"), ("host", "batches are built in CPU memory, and torch copies them to mps")),
        ("host", GPU, ("host", "batches are built in CPU memory, and torch copies them to cuda:0 from pinned memory")),
        ("auto", GPU, ("undecided", "that is decided when the first batch is asked for")),
        ("gds", GPU, ("gds", "asked for by name")),
    ],
)
def test_what_is_expected(name, device, answer):
    assert expected(BackendRequest(name, device)) == answer


# --- choosing ---


class Engine:
    """Stands in for cuFile, which is not there without a GPU."""

    name = "cufile"

    def __init__(self, device, *, batches=False):
        self.device, self.batches = device, batches

    def end(self):
        pass


class Bounce:
    """Stands in for `BounceBackend`, which pins memory."""

    name, in_place = "bounce", False

    def __init__(self, files, device, *, pinned_bytes, threads=8):
        self.files, self.device, self.pinned_bytes, self.threads = files, device, pinned_bytes, threads

    def close(self):
        self.files.close()


@pytest.fixture(autouse=True)
def no_cuda(monkeypatch):
    """Replace backends that touch a GPU when they are made; nothing here depends on cuFile."""
    monkeypatch.setitem(gds_engines.ENGINES, "cufile", Engine)
    monkeypatch.setattr(registry, "BounceBackend", Bounce)
    monkeypatch.setattr(select, "dma_is_possible", lambda: (True, ""))


@pytest.fixture
def open_files(folder, to_close):
    return lambda *, mapped: to_close(files_in(folder, mapped=mapped))


@pytest.fixture
def files(open_files):
    return open_files(mapped=True)


@pytest.fixture
def choosing(to_close):
    """Chooses backends, and has cuFile answer."""

    def chosen(request, files, probe=unasked):
        found = settled(choose(request, files, probe=probe))
        to_close(found.backend)
        return found

    return chosen


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        (BackendRequest("host"), HostBackend),
        (BackendRequest("host", GPU), HostBackend),
        (BackendRequest("auto"), HostBackend),
        (BackendRequest("auto", torch.device("mps"), register_bytes=9), HostBackend),
        (BackendRequest("mapped", GPU, register_bytes=9), MappedBackend),
        (BackendRequest("bounce", GPU, pinned_bytes=8), Bounce),
    ],
)
def test_names_that_need_no_cufile(choosing, files, asked, kind):
    chosen = choosing(asked, files)
    assert type(chosen.backend) is kind
    known = expected(asked) if kind is HostBackend else (asked.backend, "asked for by name")
    assert (chosen.name(), chosen.reason()) == known
    assert getattr(chosen.backend, "register_bytes", 9) == 9
    assert getattr(chosen.backend, "pinned_bytes", 8) == 8


@pytest.mark.parametrize(("name", "device"), [("host", CPU), ("bounce", GPU), ("gds", GPU), ("auto", GPU)])
def test_as_many_threads_read_as_were_asked_for(choosing, files, name, device, monkeypatch):
    counts, made = [], Pool.__init__
    monkeypatch.setattr(Pool, "__init__", lambda self, *args: (counts.append(args[0]), made(self, *args))[0])
    request = BackendRequest(name, device, read_threads=5)
    backend = choosing(request, files, Probing(BY_DMA if name == "gds" else BY_CPU)).backend
    cold = backend.now.backend if isinstance(backend, ProbedBackend) else backend
    assert ({cold.threads} if isinstance(cold, Bounce) else {*counts}) == {5}


@pytest.mark.parametrize("found", [BY_DMA, BY_CPU])
def test_gds_by_name_asks_with_the_first_shard_and_registers_slots_and_makes_batches_only_for_dma(
    choosing, files, found, monkeypatch
):
    found, registering = replace(found, batches=True), []
    probe = Probing(found)
    monkeypatch.setattr(
        gds, "Slots", lambda device, engine: registering.append(engine is not None) or Slots(device, engine)
    )
    chosen = choosing(BackendRequest("gds", GPU, allow_compat=True), files, probe)
    assert (type(chosen.backend), chosen.name()) == (GdsBackend, "gds")
    assert chosen.reason() == f"asked for by name; a trial read took the path {found.path}"
    assert registering == [found.proven]
    assert chosen.backend.engine.batches == found.proven
    assert probe.asked == [(files.sources[0].path, "cuda:0")]


def test_where_the_engine_cannot_be_opened_auto_bounces_and_gds_by_name_does_not(choosing, files, monkeypatch):
    def refuse(device, **_):
        raise BackendUnavailableError("cuFile was opened before this process was forked")

    monkeypatch.setitem(gds_engines.ENGINES, "cufile", refuse)
    with pytest.raises(BackendUnavailableError, match="opened before this process was forked"):
        choose(BackendRequest("gds", GPU), files, probe=Probing(BY_DMA))
    chosen = choosing(BackendRequest("auto", GPU), files, Probing(BY_DMA))
    assert chosen.name() == "bounce"
    assert "opened before this process was forked" in chosen.reason()


def test_auto_asks_with_a_shard_of_each_drive(choosing, folder):
    files = files_of(where=lambda source: source.path[-13] == "2")(open_catalog(str(folder)).sources, mapped=False)
    probe = Probing(BY_DMA, **{"2": BY_CPU})
    chosen = choosing(BackendRequest("auto", GPU), files, probe)
    assert [path for path, _ in probe.asked] == [str(folder / "0.safetensors"), str(folder / "2.safetensors")]
    assert chosen.name() == "bounce"
    assert f"a trial read of {folder / '2.safetensors'} took the path cufile-posix" in chosen.reason()


@settings(derandomize=True, max_examples=60)
@given(probes, st.booleans(), st.booleans(), st.booleans())
def test_auto_takes_what_there_is_evidence_for(folder, found, is_mapped, registers, possible):
    files = files_in(folder, mapped=is_mapped)
    probe = Probing(found)
    request = BackendRequest("auto", GPU, register_bytes=9 * registers, allow_compat=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(select, "dma_is_possible", lambda: (possible, "" if possible else "there is no way"))
        chosen = settled(choose(request, files, probe=probe))
    by_dma = possible and found.proven  # cuFile's own compat mode is never what is best
    assert chosen.name() == ("mapped+" if is_mapped and registers else "") + ("gds" if by_dma else "bounce")
    cold = chosen.backend.far if is_mapped and registers else chosen.backend
    assert type(cold) is (ProbedBackend if possible else Bounce)
    assert type(cold.now.backend if possible else cold) is (GdsBackend if by_dma else Bounce)
    assert type(chosen.backend) is (Tiered if is_mapped and registers else type(cold))
    assert len(probe.asked) == possible
    why = chosen.reason()
    assert ("there is no way" in why) is not possible
    if possible and found.status == "ok":
        assert f"a trial read took the path {found.path}" in why
    chosen.backend.close()


@pytest.mark.parametrize(
    ("name", "room", "keep", "kept"),
    [
        ("auto", -1, True, [True] * 3 + [False]), ("auto", 0, True, [True] * 4), ("auto", 0, False, [False] * 4),
        ("auto", None, True, [False] * 4), ("bounce", 0, True, [False] * 4), ("host", 0, True, [False] * 4),
    ],
)  # fmt: skip
def test_auto_keeps_the_first_shards_that_fit_where_pages_can_be_registered(choosing, files, name, room, keep, kept):
    nbytes = 0 if room is None else room + sum(source.length() for source in files.sources)
    request = BackendRequest(name, GPU, register_bytes=nbytes, keep=keep)
    choosing(request, files, Probing(BY_CPU))
    assert files.kept.tolist() == kept


NOT_MAPPED = "no page is registered: the files are not mapped"


@pytest.mark.parametrize(
    ("mapped", "register_bytes", "found", "reason"),
    [
        (True, 0, BY_DMA, "a trial read took the path gds-nvfs; no page is registered: Memory(registered=0)"),
        (False, 9, BY_DMA, f"a trial read took the path gds-nvfs; {NOT_MAPPED}"),
        (False, 9, CufileProbe("timeout", "no answer within 5 s"), f"cuFile: no answer within 5 s; {NOT_MAPPED}"),
    ],
)
def test_why_auto_registers_no_page(choosing, open_files, mapped, register_bytes, found, reason):
    request = BackendRequest("auto", GPU, register_bytes=register_bytes)
    assert choosing(request, open_files(mapped=mapped), Probing(found)).reason() == reason


@pytest.mark.parametrize(
    ("found", "name", "way"),
    [(BY_DMA, "gds", "from the drive by DMA"), (BY_CPU, "bounce", "through pinned host memory")],
)
def test_what_auto_says_is_as_things_are_when_it_is_asked(choosing, files, found, name, way):
    opened = choosing(BackendRequest("auto", GPU, register_bytes=9), files, Probing(found))
    others = f"the others: a trial read took the path {found.path}"
    assert opened.answer() == f"{name}: every byte reaches the GPU {way}"
    assert opened.reason() == f"0 of 4 shards are resident and registered; {others}"
    opened.backend.near.registered[:2] = True
    opened.backend.near.trouble = "they are used up"
    assert opened.answer() == (
        f"mapped+{name}: 2 of 4 shards can be gathered from the page cache by the GPU, the others reach it {way}"
    )
    assert opened.reason() == f"2 of 4 shards are resident and registered (they are used up); {others}"
    opened.backend.near.registered[:] = True
    opened.backend.near.trouble = ""
    assert opened.answer() == "mapped: every byte of this dataset can be gathered from the page cache by the GPU"
    assert opened.reason() == "4 of 4 shards are resident and registered"


@pytest.mark.parametrize(
    ("name", "found", "answer"),
    [
        ("mapped", None, "mapped: every byte of this dataset can be gathered from the page cache by the GPU"),
        ("bounce", None, "bounce: every byte reaches the GPU through pinned host memory"),
        ("gds", BY_DMA, "gds: every byte reaches the GPU from the drive by DMA"),
        ("gds", BY_CPU, "gds: every byte reaches the GPU by cuFile's compat mode, in which the CPU reads"),
    ],
)
def test_the_answer_of_a_backend_asked_for_by_name(choosing, files, name, found, answer):
    request = BackendRequest(name, GPU, allow_compat=True, register_bytes=9)
    opened = choosing(request, files, unasked if found is None else Probing(found))
    assert opened.answer() == answer
    status = BackendStatus(name, opened.name(), opened.reason(), {name: 7}, opened.answer())
    assert str(status).splitlines() == [answer, f"  {opened.reason()}", f"  asked for {name}", f"  {name}: 7 bytes"]


@pytest.mark.parametrize("device", [CPU, GPU, torch.device("mps")])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_mapped", [True, False])
def test_what_is_used_in_place_is_known_beforehand(open_files, device, name, is_mapped):
    request = BackendRequest(name, device, allow_compat=True, register_bytes=9)
    try:
        opened = choose(request, open_files(mapped=is_mapped), probe=Probing(BY_DMA))
    except BackendUnavailableError:
        return  # as other tests say
    assert opened.backend.in_place is reads_in_place(request, mapped=is_mapped)
    opened.backend.close()


@pytest.mark.parametrize(("asked", "mapped", "found"), [("gds", True, "gds"), ("auto", False, "bounce")])
def test_a_dataset_without_shards(choosing, asked, mapped, found):
    probe = Probing(BY_DMA)
    chosen = choosing(BackendRequest(asked, GPU), LocalFiles([], mapped=mapped), probe)
    assert (chosen.name(), probe.asked) == (found, [])


# --- what the system could do ---


IMPOSSIBLE = (False, "cuFile has no way to DMA here: nvidia-fs is not loaded, and P2PDMA is not switched on")
SWITCHED_ON = '{"properties": {"use_pci_p2pdma": true}}'


@pytest.mark.parametrize(
    ("path", "text", "environ", "possible"),
    [
        ("/proc/driver/nvidia/version", "", {}, False),
        ("/proc/driver/nvidia-fs/stats", "GDS Version: 1.15", {}, True),
        ("/etc/cufile.json", '{"properties": {"use_pci_p2pdma": false}}', {}, False),  # as it comes with cuFile
        ("/etc/cufile.json", '{"properties": ["use_pci_p2pdma"]}', {}, False),
        ("/etc/cufile.json", SWITCHED_ON[:-1], {}, False),  # which nobody can read
        ("/etc/cufile.json", SWITCHED_ON, {}, True),
        ("/data/own.json", SWITCHED_ON, {}, False),
        ("/data/own.json", SWITCHED_ON, {"CUFILE_ENV_PATH_JSON": "/data/own.json"}, True),
        *[
            ("/x", "", {"CUFILE_USE_PCIP2PDMA": text}, text in ("1", "ON"))
            for text in ("1", "ON", "0", "", "off")
        ],
    ],
)  # fmt: skip
def test_dma_is_possible_where_the_system_is_set_up_for_it(tmp_path, monkeypatch, path, text, environ, possible):
    for name in ("CUFILE_USE_PCIP2PDMA", "CUFILE_ENV_PATH_JSON"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    place = tmp_path / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    assert dma_is_possible(Tree(str(tmp_path))) == ((True, "") if possible else IMPOSSIBLE)
