import inspect

import gdsload
from tools.option_table import PAGE, option_table, with_table


def test_the_reference_has_the_options_as_they_are_declared():
    page = PAGE.read_text()
    assert page == with_table(page), "run: python -m tools.option_table --write"


def test_each_option_is_a_row_with_its_default():
    rows = [row.split(" | ") for row in option_table().splitlines()[2:]]
    names = [row[0].strip("|` ") for row in rows]
    assert names == [*list(inspect.signature(gdsload.DataLoader).parameters)[:-1], "others"]
    found = dict(zip(names, rows, strict=True))
    assert found["memory"][1:3] == ["`Memory \\| None`", "`None`"]
    assert found["dataset"][2].strip() == ""
    assert all(row[-1].rstrip("| ") for row in rows)


def test_the_table_is_replaced_and_nothing_else():
    page = PAGE.read_text()
    spoiled = page.replace("| `seed` |", "| `sed` |")
    assert spoiled != page
    assert with_table(spoiled) == page
