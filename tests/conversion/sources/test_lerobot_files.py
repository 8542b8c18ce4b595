"""LeRobot datasets, laid out as versions 2 and 3 are, and those that do not hold together."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as tables
import pytest

from gdsload.conversion.sources.lerobot_files import LeRobotSource
from gdsload.errors import FormatError, OptionError
from tests.conversion.contents import picture
from tests.conversion.reading import made_by

FEATURES = {
    "observation.state": {"dtype": "float32", "shape": [3], "names": ["a", "b", "c"]},
    "action": {"dtype": "float32", "shape": [2, 2]},
    "observation.images.top": {"dtype": "image", "shape": [6, 8, 3]},
    "timestamp": {"dtype": "float32", "shape": [1]},
    "frame_index": {"dtype": "int64", "shape": [1]},
    "episode_index": {"dtype": "int64", "shape": [1]},
    "task_index": {"dtype": "int64", "shape": [1]},
    "next.done": {"dtype": "bool", "shape": [1]},
    "note": {"dtype": "string", "shape": [1]},
}
FRAMES, LENGTH = 12, 3  # of all, and of an episode


def png(number):
    return picture(np.full((6, 8, 3), number, np.uint8))


def rows(low, high):
    numbers = np.arange(low, high)
    state = np.stack([numbers, numbers * 2, numbers * 3], 1).astype(np.float32)
    return {
        "observation.state": pa.array(list(state), pa.list_(pa.float32())),
        "action": pa.array([[[n, 1], [2, 3]] for n in range(low, high)], pa.list_(pa.list_(pa.float32()))),
        "observation.images.top": [{"bytes": png(n), "path": f"{n}.png"} for n in range(low, high)],
        "timestamp": (numbers % LENGTH / 10).astype(np.float32),
        "frame_index": numbers % LENGTH,
        "episode_index": numbers // LENGTH,
        "task_index": numbers % 2,
        "next.done": numbers % LENGTH == LENGTH - 1,
        "note": [f"é{n}" for n in range(low, high)],
    }


def write(root, version="v3.0", features=FEATURES, change=None, edges=((0, 7), (7, 12)), **info):
    (root / "meta").mkdir(parents=True)
    described = {"codebase_version": version, "fps": 10, "features": features, "splits": {"train": "0:4"}, **info}
    (root / "meta" / "info.json").write_text(json.dumps(described))
    if version != "v3.0":
        edges = [(low, low + LENGTH) for low in range(0, FRAMES, LENGTH)]
    for number, (low, high) in enumerate(edges):
        name = f"file-{number:03}" if version == "v3.0" else f"episode_{number:06}"
        (root / "data" / "chunk-000").mkdir(parents=True, exist_ok=True)
        columns = {name: value for name, value in rows(low, high).items() if name in features}
        if change is not None:
            columns = change(columns)
        tables.write_table(pa.table(columns), root / "data" / "chunk-000" / f"{name}.parquet", row_group_size=2)
    return str(root)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_every_frame_in_order(tmp_path, samples_in, version):
    path = write(tmp_path / "d", version)
    source = LeRobotSource(path)
    assert len(source.parts(400)) > 3
    for target in (400, 2**20):
        found = samples_in(source, target)
        assert [one["observation.state"].tolist() for one in found] == [[n, n * 2, n * 3] for n in range(FRAMES)]
        assert [one["action"].tolist() for one in found] == [[[n, 1], [2, 3]] for n in range(FRAMES)]
        assert [int(one["episode_index"]) for one in found] == [n // LENGTH for n in range(FRAMES)]
        assert [bool(one["next.done"]) for one in found] == [n % LENGTH == 2 for n in range(FRAMES)]
        assert [one["note"] for one in found] == [f"é{n}" for n in range(FRAMES)]
        assert all((one["observation.images.top"] == n).all() for n, one in enumerate(found))
    first = found[0]
    assert (first["observation.images.top"].shape, first["timestamp"].shape) == ((3, 6, 8), ())
    assert (first["observation.state"].dtype, first["timestamp"].dtype) == (np.float32, np.float32)
    small = samples_in(LeRobotSource(path, size=4).only(["observation.images.top"]))
    assert {name: value.shape for name, value in small[0].items()} == {"observation.images.top": (3, 4, 4)}


def test_videos_are_refused_with_the_way_out(tmp_path, samples_in):
    features = {**FEATURES, "observation.images.wrist": {"dtype": "video", "shape": [6, 8, 3]}}
    path = write(tmp_path / "d", features=features)
    with pytest.raises(FormatError, match=r"wrist' is video.*`fields=\['observation.state', 'action'.*torch dataset"):
        LeRobotSource(path).parts(1)
    assert len(samples_in(LeRobotSource(path).only(["action"]))) == FRAMES


def test_splits_are_ranges_of_episodes(tmp_path, samples_in):
    path = write(tmp_path / "d", splits={"train": "0:3", "val": "3:"})
    for split in (None, "val"):
        with pytest.raises(OptionError, match="'train', 'val', are ranges of episodes.*`split='all'`"):
            LeRobotSource(path, split=split).parts(1)
    assert len(samples_in(LeRobotSource(path, split="all"))) == FRAMES
    with pytest.raises(OptionError, match="no split 'test'.*There are 'train', 'val'"):
        LeRobotSource(path, split="test").parts(1)
    assert len(samples_in(LeRobotSource(write(tmp_path / "e"), split="train"))) == FRAMES


def test_tasks(tmp_path):
    source = LeRobotSource(write(tmp_path / "d"))
    assert source.tasks == []
    (tmp_path / "d/meta/tasks.jsonl").write_text('{"task_index": 1, "task": "b"}\n{"task_index": 0, "task": "a"}\n')
    assert source.tasks == ["a", "b"]
    table = pa.table({"task_index": [1, 0], "__index_level_0__": ["y", "x"]})
    tables.write_table(table, tmp_path / "d/meta/tasks.parquet")
    assert source.tasks == ["x", "y"]
    assert source.metadata() == {"fps": 10, "classes": {"task_index": ["x", "y"]}}
    (tmp_path / "d/meta/tasks.parquet").unlink()
    (tmp_path / "d/meta/tasks.jsonl").write_text("[]")
    with pytest.raises(FormatError, match="the tasks are not as LeRobot writes them"):
        _ = source.tasks


def _replaced(name, values):
    def change(columns):
        return {**columns, name: values(len(columns["timestamp"]))}

    return change


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (_replaced("observation.state", lambda n: [["a", "b", "c"]] * n), "no numbers"),
        (_replaced("observation.state", lambda n: [None] * n), "no field can have .*null"),
        (_replaced("observation.images.top", lambda n: [{"bytes": None, "path": "a.png"}] * n), "has no image"),
        (_replaced("observation.images.top", lambda n: [{"bytes": b"x", "path": ""}] * n), "cannot be decoded"),
        (_replaced("observation.images.top", lambda n: [{"bytes": png(0)}] * n), "feature .* has no images"),
        (_replaced("observation.images.top", lambda n: ["a.png"] * n), "feature .* has no images"),
        (_replaced("note", lambda n: list(range(n))), "no text"),
    ],
)  # fmt: skip
def test_values_that_are_not_as_described(tmp_path, change, match):
    source = LeRobotSource(write(tmp_path / "d", change=change))
    with pytest.raises(FormatError, match=match):
        made_by(source, 1)


NUMBERS = ["observation.state", "action", "timestamp", "frame_index"]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("observation.state", [1.0, 2.0], "column 'observation.state' is not of type fixed_size_list<item: float>[3]"),
        ("action", [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "column 'action' is not of type fixed_size_list<item: fixed_size_list<"),
        ("action", [[1.0, 2.0], [3.0]], "column 'action' is not of type fixed_size_list<item: fixed_size_list<"),
        ("observation.state", None, "column 'observation.state' has no value"),
        ("observation.state", [1.0, None, 3.0], "`fill={'observation.state': 0}`"),
        ("timestamp", None, "`fill={'timestamp': 0}`"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("fields", [NUMBERS, None])
def test_a_value_that_is_missing_or_of_another_shape_is_its_frames_fault(tmp_path, left_out, name, value, said, fields):
    """Also a number, which other tables would have as NaN; and beside images, where frames are read one by one."""

    def spoil(columns):
        column = pa.array(columns[name])
        return {**columns, name: pa.array([*column[:1].to_pylist(), value, *column[2:].to_pylist()], column.type)}

    path = write(tmp_path / "d", change=spoil, edges=[(0, FRAMES)])
    dataset = left_out(path, {"row 1": said}, fields=fields)
    assert dataset.column("frame_index").tolist() == [0, *(n % LENGTH for n in range(2, FRAMES))]


@pytest.mark.parametrize(
    ("info", "match"),
    [
        ({"codebase_version": "v1.6"}, "its version is 'v1.6'; v2 and v3 are read"),
        ({"features": 7}, "it has no features"),
        ({"features": {"x": {"dtype": "object", "shape": [1]}}}, "feature 'x', .*, is none that a field can have"),
        ({"features": {"x": {"dtype": "float32", "shape": [2**20] * 2}}}, "feature 'x', .*, is none that a field can"),
        ({"features": {"x": {"dtype": "float32", "shape": [1]}}}, "no column 'x'"),
    ],
)
def test_descriptions_that_are_none(tmp_path, info, match):
    path = write(tmp_path / "d")
    described = json.loads((tmp_path / "d/meta/info.json").read_text())
    (tmp_path / "d/meta/info.json").write_text(json.dumps({**described, **info}))
    with pytest.raises(FormatError, match=match):
        LeRobotSource(path).parts(1)


@pytest.mark.parametrize("name", ["meta/info.json", "data/chunk-000/file-000.parquet"])
def test_damaged_files(tmp_path, survives_damage, name):
    path = write(tmp_path / "d")
    assert survives_damage(tmp_path / "d" / name, lambda: LeRobotSource(path), rounds=40) > 10
