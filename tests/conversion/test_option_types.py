"""Options of all kinds: a value of a wrong type is refused by name, and says what it may be."""

from __future__ import annotations

import pytest

from gdsload.conversion.option_types import check_values
from gdsload.conversion.recognise import KINDS, source_class, source_for
from gdsload.errors import OptionError


@pytest.mark.parametrize(
    ("kind", "options", "match"),
    [
        ("webdataset", {"with_key": "no"}, "with_key is 'no'. It may be: true or false"),
        ("webdataset", {"with_key": 0}, "with_key is 0. It may be: true or false"),
        ("webdataset", {"max_member_bytes": "1GB"}, "max_member_bytes is '1GB'. It may be: whole number"),
        ("images", {"size": "abc"}, "size is 'abc'. It may be: whole number"),
        ("images", {"size": 2.5}, "size is 2.5. It may be: whole number"),
        ("images", {"size": True}, "size is True. It may be: whole number"),
        ("images", {"follow_links": "yes"}, "follow_links is 'yes'. It may be: true or false"),
        ("mat", {"last": 5}, "last is 5. It may be: a list, each a text"),
        ("mat", {"last": ["a", 5]}, "last is .*It may be: a list, each a text"),
        ("mat", {"last": "lab"}, r"last is the text 'lab'. Pass a list: last=\['lab'\]"),
        ("csv", {"types": "zip:str"}, "types is 'zip:str'. It may be: a mapping of each text to a text"),
        ("csv", {"types": {"zip": 5}}, "types is .*a mapping of each text to a text"),
        ("hdf5", {"group": 5}, "group is 5. It may be: text"),
        ("tokens", {"end": "2"}, "end is '2'. It may be: whole number"),
        ("lmdb", {"with_key": "yes"}, "with_key is 'yes'. It may be: true or false"),
        ("lmdb", {"database": 5}, "database is 5. It may be: text"),
        ("h5ad", {"dense": 1}, "dense is 1. It may be: true or false"),
        ("mat", {"last": "X"}, r"last is the text 'X'. Pass a list: last=\['X'\]"),
        ("idx", {"prefix": 7}, "prefix is 7. It may be: text"),
    ],
)
def test_values_of_a_wrong_type(tmp_path, kind, options, match):
    with pytest.raises(OptionError, match=match):
        source_for(str(tmp_path), kind, options)


def test_values_of_a_right_type(tmp_path):
    _, made = source_class(str(tmp_path), "csv")
    check_values(made, {"types": {"a": "str"}, "size": 5, "delimiter": None, "mode": {"a": "L", "": "RGB"}, "zzz": 1})
    check_values(made, {"types": None, "mode": "RGB"})


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"torch"}))
def test_every_option_of_every_kind_is_checked(tmp_path, kind):
    """Each has an annotation, by which a value of no type at all is refused."""
    _, made = source_class(str(tmp_path), kind)
    with pytest.raises(OptionError, match="Its options are") as caught:
        from gdsload.conversion.keywords import divided

        divided(str(tmp_path), {"kind": kind, "source_options": {"zzz": 1}})
    for name in caught.value.remedy.removeprefix("Its options are ").rstrip(".").split(", "):
        with pytest.raises(OptionError, match=f"{name} is <object"):
            check_values(made, {name: object()})
