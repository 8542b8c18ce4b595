"""Values of a source's options, compared with the types that its parameters are annotated with."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from gdsload.errors import OptionError
from gdsload.system.names import check_list

Function = TypeVar("Function", bound=Callable[..., Any])


class _Default:
    def __repr__(self) -> str:
        return "..."


_DEFAULT = _Default()
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", Any: "any value"}


def source_parameters(made: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The options of sources of a class, by name: its parameters but the first one, which is what they read."""
    return {one.name: one for one in _spelled_out(inspect.signature(made, eval_str=True))[1:]}


def shows_options(function: Function) -> Function:
    """Give a function with ``**options: Unpack[...]`` a signature that lists them, for `help` and notebooks.

    The default of each is shown as ``...``, as in a stub: the docstring says what it is.
    """
    signature = inspect.signature(function, eval_str=True)
    shown = [
        one.replace(default=_DEFAULT) if one.name not in signature.parameters else one
        for one in _spelled_out(signature)
    ]
    function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return function


def _spelled_out(signature: inspect.Signature) -> list[inspect.Parameter]:
    """The parameters of a signature, with the keys of a TypedDict in place of ``**options``."""
    found: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:  # **options: Unpack[of a TypedDict]
            for one in get_args(parameter.annotation):
                for key, annotation in get_type_hints(one).items():
                    found.append(inspect.Parameter(key, parameter.KEYWORD_ONLY, annotation=annotation))
        else:
            found.append(parameter)
    return found


def check_types(annotations: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse values of types that options with these annotations do not have.

    Raises:
        OptionError: naming the option, the value, and what it may be.
    """
    for name, value in given.items():
        wanted = annotations.get(name, Any)
        if _suits(value, wanted):
            continue
        if any(get_origin(one) is Sequence for one in _choices(wanted)):
            check_list(name, value)
        raise OptionError(f"is {value!r:.200}", option=name, remedy=f"Pass {_word(wanted)}.")


def _choices(wanted: Any) -> tuple[Any, ...]:
    return get_args(wanted) if get_origin(wanted) in (Union, types.UnionType) else (wanted,)


def _suits(value: object, wanted: Any) -> bool:
    if wanted is Any:
        return True
    choices = _choices(wanted)
    if len(choices) > 1:
        return any(_suits(value, one) for one in choices)
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin is Literal:
        return value in inner
    if origin is Sequence:
        is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        return is_list and all(_suits(one, inner[0]) for one in value)  # type: ignore[attr-defined]
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            _suits(key, inner[0]) and _suits(one, inner[1]) for key, one in value.items()
        )
    if wanted in (int, float):
        return isinstance(value, Integral if wanted is int else Real) and not isinstance(value, bool)
    if origin is Callable:
        return callable(value)
    return not isinstance(wanted, type) or isinstance(value, wanted)


def _word(wanted: Any) -> str:
    if len(choices := _choices(wanted)) > 1:
        return " or ".join(_word(one) for one in choices if one is not types.NoneType)
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin is Sequence:
        return f"a list, each {_word(inner[0])}"
    if origin is Mapping:
        return f"a mapping of each {_word(inner[0]).removeprefix('a ')} to {_word(inner[1])}"
    if origin is Callable:
        return "a function"
    return _WORDS.get(wanted, f"a {getattr(wanted, '__name__', wanted)}")
