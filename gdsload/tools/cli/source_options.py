"""The options of the kinds of sources: as arguments of `gdsload convert`, and described by `--help-source`."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import textwrap
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from gdsload.conversion.option_types import source_parameters
from gdsload.conversion.recognise import KINDS, source_class
from gdsload.tools.cli.terminal import wrapped
from gdsload.tools.cli.usage import OF_SOURCE, Parser, entry, flags, help_width, meant, say_help

_ENTRY = re.compile(r"^(\*{0,2}\w+): ?(.*)$")


def add_source_options(parser: Parser, wanted: Collection[str] | None = None) -> None:
    """Add the options of kinds, unless they are there already; the conversion checks which suit the source.

    The classes of kinds are imported for it, torch for some of them, until the `wanted` flags are there; None: all.
    """
    known = flags(parser)
    for kind in KINDS:
        if wanted is not None and set(flags(parser)).issuperset(wanted):
            return
        for name, parameter in _parameters(kind).items():
            flag = f"--{name.replace('_', '-')}"
            if flag in known:
                continue
            how: dict[str, Any] = {"type": partial(_from_text, annotation=parameter.annotation)}
            if _takes(parameter.annotation, bool):
                how = {"action": argparse.BooleanOptionalAction}
            parser.add_argument(flag, dest=OF_SOURCE + name, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **how)
            known.append(flag)


def source_options(chosen: argparse.Namespace) -> dict[str, Any]:
    """Those of them that a command line had, by their names in Python."""
    return {name.removeprefix(OF_SOURCE): value for name, value in vars(chosen).items() if name.startswith(OF_SOURCE)}


def _from_text(text: str, annotation: Any = Any) -> Any:
    """A value as JSON writes it, or else the text; where lists or mappings are wanted, `a,b` and `a=int,b=str`, too."""
    with suppress(ValueError):
        found = json.loads(text)
        # An option that is a text, or several, is no number: ``--prefix 1``.
        of_words = all(one in (str, type(None)) or _takes(one, Sequence) for one in _choices(annotation))
        if isinstance(found, str | list | dict) or not of_words:
            return found
    words = [word for word in text.split(",") if word]
    if _takes(annotation, Mapping) and "=" in text and all("=" in word for word in words):
        pairs = (word.split("=", 1) for word in words)
        return {name: value if _of_texts(annotation) else _from_text(value) for name, value in pairs}
    if _takes(annotation, Sequence):
        return words
    if _takes(annotation, Mapping) and str not in _choices(annotation):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE,...")
    return text


def as_pairs(text: str) -> dict[str, Any]:
    """A mapping from ``a=int8,b=uint8``, or from JSON: a field may have a comma in its name."""
    found = _from_text(text, dict[str, str])
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE,...")
    return found


def _of_texts(annotation: Any) -> bool:
    """Return whether an option may be a mapping from texts to texts: ``--types id=1`` is no number."""
    options = (annotation, *typing.get_args(annotation))
    return any(typing.get_args(one) == (str, str) for one in options)


def _takes(annotation: Any, wanted: type) -> bool:
    """Return whether an option may be of this type; a text is no sequence here."""
    found = [typing.get_origin(one) or one for one in _choices(annotation)]
    return any(isinstance(one, type) and issubclass(one, wanted) and one is not str for one in found)


def _choices(annotation: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    return typing.get_args(annotation) if is_union else (annotation,)


def _parameters(kind: str) -> dict[str, inspect.Parameter]:
    made = source_class("", kind)[1]
    return {} if made is None else source_parameters(made)


class HelpSource(argparse.Action):
    """`--help-source KIND`: describe that kind and its options; without KIND, list the kinds."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        """Print it, and end."""
        if values is not None and values not in KINDS:
            parser.error(f"there is no kind {values!r}. {meant(values, KINDS)}There are {', '.join(KINDS)}")
        say_help(_kinds() if values is None else _described(values))
        parser.exit()


def _kinds() -> Iterator[str]:
    yield "kinds:"
    for kind in KINDS:
        said = (inspect.getdoc(source_class("", kind)[1]) or kind).partition("\n")[0]
        yield from entry(kind, said.replace("`", ""), 15)
    yield ""
    yield "`gdsload convert --help-source KIND` has the options of a kind."


def _described(kind: str) -> Iterator[str]:
    width = help_width()
    text, arguments = _sections(inspect.getdoc(source_class("", kind)[1]) or "")
    yield f"{kind}:"
    for paragraph in text:
        yield from wrapped(paragraph, width, first="  ", rest="  ")
        yield ""
    yield "options:"
    shared = {name: said for of in _shared(kind) for name, said in _sections(inspect.getdoc(of) or "")[1].items()}
    for name, parameter in _parameters(kind).items():
        default = parameter.default
        value = default if isinstance(default, str) else json.dumps(default, default=str)
        shown = "" if default in (None, inspect.Parameter.empty) else f" (default: {value})"
        said = (arguments.get(name) or shared.get(name, "")).rstrip(".").replace(". None: ", ". Without it: ")
        said = said.replace("None: ", "without it: ") + shown
        flag = f"--{name.replace('_', '-')}"
        flag += "" if _takes(parameter.annotation, bool) else f" {name.upper()}"
        yield from entry(flag, said)
    yield ""
    yield from wrapped(f"In Python: gdsload.convert(SOURCE, OUT, kind={kind!r}, NAME=VALUE).", width)


def _shared(kind: str) -> tuple[Any, ...]:
    """The classes that document the options of a kind: those that many kinds share, and its own typed dicts."""
    from gdsload.conversion.input_files import SourceFiles
    from gdsload.conversion.sources.arrow_types import ColumnOptions
    from gdsload.conversion.sources.pictures import ImageForm

    made = source_class("", kind)[1]
    own = () if made is None else inspect.signature(made, eval_str=True).parameters.values()
    of_kind = (one for parameter in own for one in typing.get_args(parameter.annotation) if typing.is_typeddict(one))
    return SourceFiles, ImageForm, ColumnOptions, *of_kind


def _sections(doc: str) -> tuple[list[str], dict[str, str]]:
    """The paragraphs of a docstring, and what it says of each argument."""
    body, *more = re.split(r"\n(?:Args|Attributes):\n", doc.replace("``", "").replace("`", ""), maxsplit=1)
    rest = more[0] if more else ""
    found: dict[str, str] = {}
    name = ""
    for line in textwrap.dedent(rest.partition("\n\n")[0]).splitlines():
        entry = _ENTRY.match(line)
        if entry and not line.startswith(" "):
            name = entry[1]
            found[name] = entry[2]
        elif name:
            found[name] += " " + line.strip()
    return [" ".join(one.split()) for one in body.split("\n\n") if one.strip()], found
