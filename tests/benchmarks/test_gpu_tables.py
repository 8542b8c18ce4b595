"""The README shows the records that are there."""

from __future__ import annotations

from benchmarks.gpu.tables import README, main, with_tables


def test_the_readme_shows_the_records(capsys):
    text = README.read_text(encoding="utf-8")
    assert with_tables(text) == text, "run: python -m benchmarks.gpu.tables --write"
    assert main([]) == 0
    assert capsys.readouterr().out == text
