"""The dataset card: `gdsload inspect --html`.

One HTML page without scripts or other files, for light and dark mode and small screens.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from gdsload.system.units import counted, format_bytes
from gdsload.system.version import __version__
from gdsload.tools.cli.card_facts import ROW, Classes, FieldFacts, cached_share, classes_of, field_facts
from gdsload.tools.cli.samples import Spread, drawn, metadata_lines, short
from gdsload.tools.cli.terminal import plain
from gdsload.tools.cli.thumbnails import has_pictures, thumbnails
from gdsload.tools.web_page import as_text, web_page

if TYPE_CHECKING:
    from gdsload.loader.dataset import ShardDataset

_PICTURES, _LARGE = 24, 192
"""Number of images per field, and the longer side in pixels to which they are reduced; half of it in a class's row."""
_FIELDS_OF_PICTURES = 2
_MOST_CLASSES = 40
"""The most classes that are shown; if there are more, only the largest and the smallest are."""
_WIDTH, _HEIGHT = 240, 44
_STYLE = """
* { box-sizing: border-box }
body { max-width: 68rem; padding-bottom: 3rem }
h1 { margin: 0; font-size: 1.7rem; line-height: 1.25 }
h2 { margin: 2.2rem 0 .6rem; font-size: 1.15rem; }
p, ul { margin: .3rem 0; }
.soft { color: var(--dim); font-size: .875rem; }
.facts { display: flex; flex-wrap: wrap; gap: .2rem 1.6rem; margin: .6rem 0 1rem; font-size: 1.05rem; }
.facts b { font-weight: 600; }
.made { list-style: none; padding: 0; }
code, pre, .made { overflow-wrap: anywhere; }
code, pre { font: .875rem/1.5 ui-monospace, monospace; }
pre { overflow-x: auto; padding: .8rem 1rem; background: var(--box); border-radius: 6px; }
.texts pre { white-space: pre-wrap; }
.fields { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); gap: .8rem; }
.fields section { padding: .8rem 1rem; background: var(--box); border-radius: 6px; min-width: 0; }
.fields h3 { margin: 0; font-size: 1rem; overflow-wrap: anywhere; }
svg { display: block; width: 100%; height: 2.75rem; margin-top: .5rem; fill: var(--ours); }
.ends { display: flex; justify-content: space-between; border-top: 1px solid var(--line); }
table { width: 100%; border-collapse: collapse; }
th { width: 1%; min-width: 6rem; max-width: min(18rem, 40vw); padding: 0 .8rem 0 0; text-align: left;
  font-weight: 400; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.classes td:last-child { width: 1%; padding-left: .6rem; text-align: right; font-variant-numeric: tabular-nums; }
.classes i { display: block; height: .8rem; background: var(--ours); border-radius: 2px; min-width: 1px; }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(6.5rem, 1fr)); gap: .8rem; }
figure { margin: 0; min-width: 0; }
img { object-fit: contain; background: var(--box); border-radius: 4px; }
img.small { image-rendering: pixelated; }
figure img { display: block; width: 100%; height: 7rem; }
td img { width: max(2.5rem, 11.5%); aspect-ratio: 1; margin: 0 1% .2rem 0; vertical-align: middle; }
figcaption { color: var(--dim); font-size: .8rem; line-height: 1.3; max-height: 2.6em; overflow: hidden;
  overflow-wrap: anywhere; }
footer { margin-top: 2.5rem; padding-top: .6rem; border-top: 1px solid var(--line); }
"""


def make_card(dataset: ShardDataset) -> str:
    """The card of a dataset, as one HTML page.

    Raises:
        GdsloadError: if samples cannot be read.
    """
    cached = cached_share(dataset)  # first, since the rest reads samples
    fields, looked_at = field_facts(dataset)
    classes = classes_of(dataset)
    name = plain(dataset.path.rstrip("/").rpartition("/")[2] or dataset.path)
    lines = [*_head(dataset, name, cached), "<h2>Fields</h2>", *_fields(dataset, fields, classes, looked_at)]
    lines += _classes(classes) if classes else []
    for field in [one for one, kind in dataset.schema.items() if has_pictures(kind)][:_FIELDS_OF_PICTURES]:
        lines += _rows(dataset, field, classes) if classes else []
        lines += _pictures(dataset, field)
    for one in fields:
        if one.texts:
            lines += [f"<h2>First texts: {as_text(one.name)}</h2>", '<div class="texts">']
            lines += [*(_block(text) for text in one.texts), "</div>"]
    lines += ["<h2>Use it</h2>", _block(_code(dataset))]
    now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    by = f"<code>gdsload inspect --html</code>, gdsload {__version__}, {now}"
    lines += [f'<footer class="soft">Written by {by}.</footer>']
    return web_page(f"{name}: dataset card", _STYLE, "\n".join(lines))


def _block(text: str) -> str:
    """Escape text of several lines."""
    return f"<pre>{escape(chr(10).join(map(plain, text.splitlines())))}</pre>"


def _which(count: int, dataset: ShardDataset) -> str:
    """A description of the samples that were used."""
    return f"all {count} samples" if count == len(dataset) else f"{count} random sample{'s' * (count != 1)}"


def _head(dataset: ShardDataset, name: str, cached: float | None) -> Iterator[str]:
    yield f"<h1>{as_text(name)}</h1>"
    shards = len(dataset.sources)
    facts = [
        ("samples", f"{len(dataset):,}".replace(",", " ")),
        (f"in {counted(shards, 'shard')}", format_bytes(dataset.num_bytes)),
    ]
    if cached is not None:
        facts += [("in the page cache now", f"{cached:.0%}")]
    yield '<div class="facts">' + "".join(f"<span><b>{value}</b> {what}</span>" for what, value in facts) + "</div>"
    yield '<ul class="made soft">'
    said = [f"path: {dataset.path}", f"digest: {dataset.digest}", *metadata_lines(dataset.metadata)]
    said += [f"stored together: {', '.join(names)}" for names in dataset.stored.packed]
    yield from (f"<li>{as_text(line)}</li>" for line in said if not line.startswith("classes of "))
    yield "</ul>"


def _fields(
    dataset: ShardDataset, fields: Sequence[FieldFacts], classes: Classes | None, looked_at: int
) -> Iterator[str]:
    yield f'<p class="soft">Values are from {_which(looked_at, dataset)}.</p>'
    yield '<div class="fields">'
    for one in fields:
        yield f"<section><h3>{as_text(one.name)}</h3>"
        kind = as_text(str(one.field).removesuffix(" []"))
        yield f'<code>{kind}</code> <span class="soft">{format_bytes(one.nbytes)}</span>'
        if one.images:
            yield f"<p>{as_text(one.images)}</p>"
        if one.values and one.values.count and (classes is None or one.name != classes.name):
            yield from _values(one.values)
        if one.lengths:
            least, middle, most, longest = one.lengths.quantiles
            what = "bytes" if one.field.is_string else "rows"
            yield f"<p>{least} to {longest} {what}, median {middle}, 99 % up to {most}</p>"
            yield from _histogram(one.lengths.spread, what)
            if one.lengths.padding_to_longest and not one.field.is_string:
                yield f'<p class="soft">Padding is {one.lengths.padding_to_longest:.0%} if all samples are padded to '
                yield f"the longest one, and {one.lengths.padding:.0%} in batches of 64.</p>"
        yield "</section>"
    yield "</div>"


def _values(found: Spread) -> Iterator[str]:
    said = [] if found.mean != found.mean else [f"mean {_figure(found.mean)}"]
    odd = [f"{one} {word}" for one, word in ((found.nan, "NaN"), (found.infinite, "infinite")) if one]
    yield f"<p>{', '.join([*said, *odd])}{f' of {found.count} values' if odd else ''}</p>"
    yield from _histogram(found, "values")


def _histogram(found: Spread, what: str) -> Iterator[str]:
    """The bars, and the numbers at both ends."""
    highest = max(found.bars, default=0)
    if not highest:
        return
    step = _WIDTH / len(found.bars)
    yield f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img">'
    yield f"<title>histogram of {found.count} {what}</title>"
    for place, count in enumerate(found.bars):
        size = max(_HEIGHT * count / highest, 1) if count else 0
        yield f'<rect x="{place * step:.2f}" y="{_HEIGHT - size:.2f}" width="{step * 0.9:.2f}" height="{size:.2f}"/>'
    yield "</svg>"
    yield f'<div class="ends soft"><span>{_figure(found.least)}</span><span>{_figure(found.greatest)}</span></div>'


def _figure(number: float) -> str:
    return f"{number:.0f}" if float(number).is_integer() or 1000 <= abs(number) < 10**15 else short(number)


def _classes(found: Classes) -> Iterator[str]:
    there = [(name, count) for name, count in found.counts if count]
    empty = [name for name, count in found.counts if not count]
    yield f"<h2>Classes of {as_text(found.name)}</h2>"
    said = ["1 class" if len(found.counts) == 1 else f"{len(found.counts)} classes"]
    if there:
        most, least = max(count for _, count in there), min(count for _, count in there)
        said.append(f"imbalance {most / least:.3g} : 1 ({most} samples in the largest, {least} in the smallest)")
    if empty:
        names = ", ".join(empty[:10]) + (f" and {len(empty) - 10} more" if len(empty) > 10 else "")
        said.append(f"{len(empty)} without samples: {names}")
    yield f'<p class="soft">{as_text("; ".join(said))}. Counted in {found.samples} samples.</p>'
    shown = there
    if len(shown) > _MOST_CLASSES:
        shown = sorted(shown, key=lambda one: -one[1])
        shown = [*shown[: _MOST_CLASSES * 3 // 4], *shown[-_MOST_CLASSES // 4 :]]
        yield f'<p class="soft">The {_MOST_CLASSES * 3 // 4} largest and the {_MOST_CLASSES // 4} smallest classes:</p>'
    top = max((count for _, count in shown), default=0) or 1
    yield '<table class="classes">'
    for name, count in shown:
        bar = f'<i style="width: {100 * count / top:.1f}%"></i>'
        yield f'<tr><th scope="row" title="{as_text(name)}">{as_text(name)}</th><td>{bar}</td><td>{count}</td></tr>'
    yield "</table>"


def _rows(dataset: ShardDataset, field: str, classes: Classes) -> Iterator[str]:
    found = thumbnails(dataset, field, [number for _, numbers in classes.rows for number in numbers], _LARGE // 2)
    if not found:
        return
    yield f"<h2>Images of each class: {as_text(field)}</h2>"
    shown, there = len(classes.rows), len(classes.counts)
    which = "each class" if shown == there else f"each of the {shown} largest of {there} classes"
    yield f'<p class="soft">Of up to {ROW} random samples of {which}.</p>'
    yield "<table>"
    for name, numbers in classes.rows:
        images = "".join(found[number][0] for number in numbers if number in found)
        yield f'<tr><th scope="row" title="{as_text(name)}">{as_text(name)}</th><td>{images}</td></tr>'
    yield "</table>"


def _pictures(dataset: ShardDataset, field: str) -> Iterator[str]:
    found = thumbnails(dataset, field, drawn(len(dataset), _PICTURES), _LARGE)
    if not found:
        return
    yield f"<h2>Images: {as_text(field)}</h2>"
    yield f'<p class="soft">Of {_which(len(found), dataset)}.</p>'
    yield '<div class="pictures">'
    yield from (f"<figure>{image}<figcaption>{said}</figcaption></figure>" for image, said in found.values())
    yield "</div>"


def _code(dataset: ShardDataset) -> str:
    names = list(dataset.schema)[:2]
    use = ", ".join(f"batch[{name!r}]" for name in names)
    return (
        f"import gdsload\n\nloader = gdsload.DataLoader({dataset.path!r}, batch_size=256, shuffle=True)\n"
        f"for batch in loader:\n    {use}"
    )
