"""Tables whose log says which rows count are refused wherever they are met, with what reads them."""

import re

import pytest

import gdsload
from gdsload.conversion.recognise import recognise, source_for
from gdsload.errors import FormatError

LOGS = {
    "Delta": (
        "_delta_log/00000000000000000000.json",
        "import deltalake; gdsload.convert(deltalake.DeltaTable('{table}')",
    ),
    "Hudi": (".hoodie/hoodie.properties", "hudi.HudiTableBuilder.from_base_uri('{table}')"),
    "Iceberg": (
        "metadata/00002-9c12d441-03fe-4693-9a96-a0705ddf69c1.metadata.json",
        "StaticTable.from_metadata('{table}/metadata/00002-",
    ),
}


@pytest.fixture(params=LOGS)
def table(request, tmp_path):
    """A folder of a table of some kind, what its log is called, and the remedy."""
    arrow, tables = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    log, remedy = LOGS[request.param]
    folder = tmp_path / "lake" / "table"
    for name in (log, log.replace("00002-9", "00001-a"), "data/y=1/z=2/part-0.parquet"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"{}")
    tables.write_table(arrow.table({"x": [1, 2]}), folder / "data" / "y=1" / "z=2" / "part-0.parquet")
    return folder, f"it is an? {request.param} table", remedy.format(table=folder)


@pytest.mark.parametrize(
    "place", ["", "data", "data/y=1", "data/y=1/z=2/part-0.parquet", "data/y=1/z=2/{part-0,part-0}.parquet"]
)
def test_is_refused_with_what_reads_it(table, place, out):
    folder, what, remedy = table
    for kind in (None, "parquet"):
        with pytest.raises(FormatError, match=f"table: {what}.*which rows of its files count") as caught:
            gdsload.convert(folder / place, out, kind=kind, workers=1)
        assert remedy in str(caught.value)


def test_is_refused_below_a_parent_and_behind_a_link(table, tmp_path, out):
    folder, what, _ = table
    with pytest.raises(FormatError, match=what):
        gdsload.convert(folder.parent, out, kind="parquet", workers=1)
    (tmp_path / "in").mkdir()
    for name, target in (("data", folder / "data"), ("0.parquet", folder / "data/y=1/z=2/part-0.parquet")):
        (tmp_path / "in" / name).symlink_to(target)
        with pytest.raises(FormatError, match=what):
            gdsload.convert(tmp_path / "in", out, kind="parquet", follow_links=True, workers=1)
        with pytest.raises(FormatError, match=what):
            gdsload.convert(tmp_path / "in" / name, out, kind="parquet", workers=1)
        (tmp_path / "in" / name).unlink()


def test_other_kinds_below_it_are_its_users_own(table):
    folder, _, _ = table
    (folder / "notes").mkdir()
    (folder / "notes" / "a.txt").write_text("one\n")
    assert source_for(str(folder / "notes"), "text").describe()["files"]


@pytest.mark.parametrize("name", ["v3.metadata.json", "00001-9c.gz.metadata.json", "orders.metadata.json"])
def test_states_of_iceberg_have_several_names(tmp_path, out, name):
    for folder in ("metadata", "data"):
        (tmp_path / folder).mkdir()
    (tmp_path / "metadata" / name).write_bytes(b"{}")
    (tmp_path / "data" / "a.parquet").write_bytes(b"")
    for place in (tmp_path, tmp_path / "data", tmp_path / "data" / "a.parquet"):
        with pytest.raises(FormatError, match=f"an Iceberg table.*{name}"):
            gdsload.convert(place, out, workers=1)


@pytest.mark.parametrize(
    "name", ["metadata/info.json", "metadata/images.metadata.json", "delta_log/0.json", "metadata"]
)
def test_folders_that_are_called_alike_are_no_logs(tmp_path, out, name):
    arrow, tables = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"{}")
    tables.write_table(arrow.table({"x": [1, 2]}), tmp_path / "a.parquet")
    assert recognise(str(tmp_path)) == "parquet"
    assert gdsload.convert(tmp_path, out, workers=1).samples == 2


def test_the_remedy_of_delta_works_when_pasted(tmp_path, monkeypatch):
    library, arrow = pytest.importorskip("deltalake"), pytest.importorskip("pyarrow")
    for rows in ([1, 2], [3]):
        library.write_deltalake(str(tmp_path / "t"), arrow.table({"x": rows}), mode="append")
    library.DeltaTable(str(tmp_path / "t")).delete("x = 2")
    with pytest.raises(FormatError, match="it is a Delta table") as caught:
        gdsload.convert(tmp_path / "t", tmp_path / "out", workers=1)
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"import deltalake.*$", str(caught.value))[0], {"gdsload": gdsload})
    assert sorted(gdsload.ShardDataset(tmp_path / "shards").column("x").tolist()) == [1, 3]
