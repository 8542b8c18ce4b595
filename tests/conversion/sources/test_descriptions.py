"""Descriptions of sources: the same again, and another one once a file or an option has changed."""

import json
import os

import pytest

from gdsload.conversion.recognise import KINDS, source_for
from gdsload.errors import GdsloadError

# Options of some kinds, each of which makes other samples.
OPTIONS = {
    "csv": [{"mode": "L"}],
    "hdf5": [{"group": "g"}],
    "images": [{"size": 8, "resize": "crop"}],
    "litdata": [{"mode": "L"}],
    "mds": [{"mode": "L"}],
    "parquet": [{"fill": {"x": 1}}],
    "tokens": [{"dtype": "int32"}, {"end": 1}, {"each": "document"}],
    "webdataset": [{"with_key": False}],
}


def test_a_description_tells_of_files_and_options(source_of_files):
    kind, folder, names, options = source_of_files

    def described(**more):
        return source_for(str(folder), kind, {**options, **more}).describe()

    before = described()
    assert json.loads(json.dumps(before)) == before == described()
    for more in OPTIONS.get(kind, []):
        assert described(**more) != before
    for name in names:
        if (folder / name).is_file() and name not in ("dataset_info.json", "data.yaml"):  # which have no samples
            os.utime(folder / name, ns=(1, 1))
            after = described()
            assert after != before, name
            before = after


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"torch"}))
def test_a_folder_without_files_of_the_kind_is_refused(tmp_path, kind):
    options = {"dtype": "uint16"} if kind == "tokens" else {}
    with pytest.raises(GdsloadError, match="there is no (file|folder in it|image|Zarr array)"):
        source_for(str(tmp_path), kind, options).parts(1)
