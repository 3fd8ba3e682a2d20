"""Checks of the arguments of constructors: a mistake is one message that says what to change."""

from __future__ import annotations

import ast
import inspect
import re
from abc import ABCMeta
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from os import PathLike
from typing import Any, Final, Literal, TypeVar, cast, get_args, get_origin

import pyarrow as pa

from .errors import StrategyError, did_you_mean

F = TypeVar("F", bound=Callable[..., Any])

_UNKNOWN: Final = re.compile(r"unexpected keyword argument '(\w+)'")
_MISSING: Final = re.compile(r"missing \d+ required [\w-]+ arguments?: ")
_CALL: Final = re.compile(r"\w+\(\) (missing|takes|got) ")
_TOO_MANY: Final = re.compile(r"takes (?:from \d+ to )?(\d+) positional arguments? but (\d+)")
_CLASSES: Final[Mapping[str, tuple[type, ...]]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
    "None": (type(None),),
    "Duration": (int, float, str, timedelta),
    "pa.Schema": (pa.Schema,),
    "os.PathLike": (PathLike,),
    "Callable": (Callable,),  # type: ignore[dict-item]  # isinstance takes it
    "Sequence": (Sequence,),
    "Mapping": (Mapping,),
}
"""The types by their names in annotations."""
_SHOWN: Final = {
    "Duration": ("seconds", "a text with a unit ('5m')", "a timedelta"),
    "pa.Schema": ("pyarrow.Schema",),
    "os.PathLike": ("a path",),
    "Callable": ("a function",),
    "Sequence": ("list",),
    "Mapping": ("dict",),
}


@dataclass(frozen=True, slots=True)
class _Allowed:
    """What an argument may be: values of some types, and some values."""

    kinds: tuple[_Kind, ...]
    choices: tuple[object, ...]
    text: str

    @staticmethod
    def of(annotation: ast.expr, names: Mapping[str, Any]) -> _Allowed | None:
        """Return what an annotation allows; None if it has a part that is not checked.

        Args:
            names: what the names of `Literal`s stand for.
        """
        kinds: list[_Kind] = []
        choices: list[object] = []
        texts: list[str] = []
        for part in _alternatives(annotation):
            if (kind := _Kind.of(part, names)) is not None:
                kinds.append(kind)
                texts += kind.texts
            elif found := _choices_of(part, names):
                choices += found
                texts += map(repr, found)
            else:
                return None
        *others, last = texts
        text = f"{', '.join(others)} or {last}" if others else last
        return _Allowed(tuple(kinds), tuple(choices), text)

    def allows(self, value: object) -> bool:
        """Return whether an argument may be a value."""
        return any(kind.allows(value) for kind in self.kinds) or any(
            type(value) is type(each) and value == each for each in self.choices
        )


@dataclass(frozen=True, slots=True)
class _Kind:
    """Values of a type: a plain one, or a list or dict whose items or keys have a type."""

    classes: tuple[type, ...]
    items: _Allowed | None
    texts: tuple[str, ...]

    @staticmethod
    def of(part: ast.expr, names: Mapping[str, Any]) -> _Kind | None:
        """Return the type that one part of an annotation names; None if it is not checked."""
        name = ast.unparse(part.value if isinstance(part, ast.Subscript) else part)
        if name not in _CLASSES:
            return None
        texts = _SHOWN.get(name, (name,))
        if name not in ("Sequence", "Mapping") or not isinstance(part, ast.Subscript):
            return _Kind(_CLASSES[name], None, texts)
        item = part.slice.elts[0] if isinstance(part.slice, ast.Tuple) else part.slice
        shown = texts[0] + ast.unparse(part).removeprefix(name)
        return _Kind(_CLASSES[name], _Allowed.of(item, names), (shown,))

    def allows(self, value: object) -> bool:
        """Return whether a value has the type: True is no number, and a text no list."""
        if isinstance(value, bool | str) and type(value) not in self.classes:
            return False
        return isinstance(value, self.classes) and (
            self.items is None or all(map(self.items.allows, cast("Iterable[object]", value)))
        )


def _alternatives(annotation: ast.expr) -> list[ast.expr]:
    """Return the parts of an annotation between `|`."""
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        return [*_alternatives(annotation.left), *_alternatives(annotation.right)]
    return [annotation]


def _choices_of(part: ast.expr, names: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the values of a `Literal`, written out or named. Return none for anything else."""
    if isinstance(part, ast.Subscript) and ast.unparse(part.value) == "Literal":
        written = ast.literal_eval(part.slice)
        return written if isinstance(written, tuple) else (written,)
    named = names.get(ast.unparse(part))
    return get_args(named) if get_origin(named) is Literal else ()


class Checked(ABCMeta):
    """Metaclass that checks the arguments of constructors.

    It checks their names. It checks the values of those whose annotation has plain types, lists and dicts,
    functions, `Duration` and `Literal`s only; it finds the names of `Literal`s in the modules of the class
    and of its base classes.
    The constructor raises StrategyError, instead of TypeError.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        own = _signature(cls.__init__)[1:]  # type: ignore[misc]  # of this very class
        return _call(super().__call__, cls.__name__, own, _parameters(cls), args, kwargs)


def checked(name: str) -> Callable[[F], F]:
    """Check the arguments of a function as those of constructors. Messages name the function by `name`."""

    def of(function: F) -> F:
        own = _signature(function)
        known = _allowed(own, getattr(function, "__globals__", {}))

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return _call(function, name, own, known, args, kwargs)

        return cast("F", call)

    return of


def _call(
    function: Callable[..., Any],
    subject: str,
    own: Sequence[inspect.Parameter],
    known: Mapping[str, _Allowed | None],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call a function whose own parameters are given if its arguments are allowed."""
    positional = [each.name for each in own if each.kind is each.POSITIONAL_OR_KEYWORD]
    for name, value in (*zip(positional, args, strict=False), *kwargs.items()):
        _check(f"{subject}: {name}", value, known.get(name))
    try:
        return function(*args, **kwargs)
    except TypeError as error:
        if mistake := explain(subject, error, kwargs, known):
            raise StrategyError(mistake) from None
        raise


def explain(
    subject: str, error: TypeError, given: Iterable[str], known: Mapping[str, _Allowed | None]
) -> str | None:
    """Return the message for a call with wrong arguments; None if the error comes from elsewhere."""
    found = _UNKNOWN.search(str(error))
    if found is not None and found[1] in given:
        meant = did_you_mean(found[1], known) or f"; it has {', '.join(known)}"
        return f"{subject} has no argument {found[1]}{meant}"
    lacking = [name for name in re.findall(r"'(\w+)'", str(error)) if name in known]
    if _MISSING.search(str(error)) and lacking:
        named = [
            f"{name} ({allowed.text})" if (allowed := known[name]) and allowed.choices else name
            for name in lacking
        ]
        return f"{subject} needs the argument{'s' * (len(lacking) > 1)} {', '.join(named)}"
    if found := _TOO_MANY.search(str(error)):
        most, passed = int(found[1]) - 1, int(found[2]) - 1  # without self
        return (
            f"{subject} takes {most or 'no'} argument{'s' * (most != 1)} without a name, not {passed}; "
            "write the names of the others: name=value"
        )
    return f"{subject}: {error}" if _CALL.match(str(error).rpartition(".")[2]) else None


def _check(subject: str, value: object, allowed: _Allowed | None) -> None:
    """Raise StrategyError unless a value is allowed."""
    if allowed is None or allowed.allows(value):
        return
    given = repr(value) if allowed.choices else f"{value!r} ({type(value).__name__})"
    raise StrategyError(f"{subject} must be {allowed.text}, not {given}")


def _parameters(cls: type) -> dict[str, _Allowed | None]:
    """Return what each argument of a constructor may be, with those that it passes to its base classes."""
    constructors = [vars(base)["__init__"] for base in cls.__mro__[:-1] if "__init__" in vars(base)]
    names = ChainMap(*(getattr(each, "__globals__", {}) for each in constructors))
    found: dict[str, _Allowed | None] = {}
    for parameters in map(_signature, constructors):
        found = _allowed(parameters[1:], names) | found
        if not any(each.kind is each.VAR_KEYWORD for each in parameters):
            break  # nothing else reaches the classes that it extends
    return found


def _allowed(
    parameters: Iterable[inspect.Parameter], names: Mapping[str, Any]
) -> dict[str, _Allowed | None]:
    return {
        each.name: _Allowed.of(ast.parse(each.annotation, mode="eval").body, names)
        if isinstance(each.annotation, str)
        else None
        for each in parameters
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    }


def _signature(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
