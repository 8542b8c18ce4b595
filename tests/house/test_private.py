"""Tests use what the package makes public; how many places do not may only fall."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_USES = 12
MOST_PATCHES = 47
"""Lower them as places go; a new one has to be worth more than a public name, and another one has to go for it."""
USE = re.compile(
    r""""[^"\n]*"|'[^'\n]*'|#.*$|(?<!\bself)(?<!\bcls)\.(_[A-Za-z]\w*)|\bfrom gdsload\b.*import\b.*\b(_[A-Za-z]\w*)""",
    re.MULTILINE,
)
PATCH = re.compile(r"""(?:setattr|delattr|getattr)\([^"']*["'](?:[\w.]*\.)?(_[A-Za-z]\w*)["']""")


def names():
    """Private names that the package binds: of modules, classes and objects; `_repr_html_` is the name of a protocol."""
    bound = re.compile(r"(?:(?:def|class) |\bself\.|^ *(?:\w+, )*)(_[A-Za-z]\w*)|\bas (_[A-Za-z]\w*)", re.MULTILINE)
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "gdsload").rglob("*.py"))
    found = {name for text in texts for names in bound.findall(text) for name in names}
    return {name for name in found if name.strip("_") and not name.endswith("_")}


def places(pattern, known):
    return [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if not {"benchmarks", "house"} & set(path.parts)  # the benchmarks are of another tree
        for text in [path.read_text(encoding="utf-8")]
        for found in pattern.finditer(text)
        if known & set(found.groups())
    ]


def test_private_names_are_used_and_patched_in_few_places():
    known = names()
    for pattern, most in ((USE, MOST_USES), (PATCH, MOST_PATCHES)):
        found = places(pattern, known)
        assert len(found) <= most, "\n".join(found)


def test_what_counts():
    assert {"_LEAST_PART_S", "_backend", "_shown"} <= names()
    used = "from gdsload.x import a, _A\nx._c = y._b().z\nself._c\n__d__\ny.__d__\n"
    assert [one for found in USE.findall(used) for one in found if one] == ["_A", "_c", "_b"]
    patched = 'patch.setattr(x, "_A", 1)\npatch.setattr("gdsload.x._B", 1)\npatch.setattr(x, "A", "_C")\n'
    assert PATCH.findall(patched) == ["_A", "_B"]
