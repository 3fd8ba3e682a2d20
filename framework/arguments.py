"""Checks of the arguments of constructors: a mistake is one message that says what to change."""

from __future__ import annotations

import inspect
import re
from abc import ABCMeta
from typing import TYPE_CHECKING, Any, Final

from .errors import StrategyError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

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
}
"""The types by their names in annotations; an annotation with another name in it is not checked."""


class Checked(ABCMeta):
    """Metaclass that checks the arguments of constructors for unknown names and for values of wrong types.

    The constructor raises StrategyError for both, instead of TypeError.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        allowed = _annotations(cls)
        for name, value in kwargs.items():
            check_type(f"{cls.__name__}: {name}", value, allowed.get(name))
        try:
            return super().__call__(*args, **kwargs)
        except TypeError as error:
            if mistake := explain(cls.__name__, error, kwargs, allowed):
                raise StrategyError(mistake) from None
            raise


def explain(
    subject: str, error: TypeError, given: Iterable[str], known: Collection[str]
) -> str | None:
    """Return the message for a call with wrong arguments; None if the error comes from elsewhere."""
    found = _UNKNOWN.search(str(error))
    if found is not None and found[1] in given:
        return f"{subject} has no argument {found[1]}{did_you_mean(found[1], known)}"
    lacking = [name for name in re.findall(r"'(\w+)'", str(error)) if name in known]
    if _MISSING.search(str(error)) and lacking:
        return f"{subject} needs the argument{'s' * (len(lacking) > 1)} {', '.join(lacking)}"
    if found := _TOO_MANY.search(str(error)):
        most, passed = int(found[1]) - 1, int(found[2]) - 1  # without self
        return (
            f"{subject} takes {most or 'no'} argument{'s' * (most != 1)} without a name, not {passed}; "
            "write the names of the others: name=value"
        )
    return f"{subject}: {error}" if _CALL.match(str(error).rpartition(".")[2]) else None


def check_type(subject: str, value: object, annotation: str | None) -> None:
    """Raise StrategyError unless a value has one of the plain types that an annotation names."""
    names = [] if annotation is None else annotation.split(" | ")
    if not names or any(name not in _CLASSES for name in names):
        return
    classes = tuple(cls for name in names for cls in _CLASSES[name])
    if isinstance(value, bool) and bool not in classes:
        classes = ()
    if not isinstance(value, classes):
        raise StrategyError(
            f"{subject} must be {' or '.join(names)}, not {value!r} ({type(value).__name__})"
        )


def _annotations(cls: type) -> dict[str, str]:
    """Return the annotations of a constructor's arguments, with those of the classes that it extends."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if "__init__" in vars(base) and base is not object:
            found |= _parameters(vars(base)["__init__"])
    return found


def _parameters(function: Callable[..., Any]) -> dict[str, str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        each.name: each.annotation if isinstance(each.annotation, str) else ""
        for each in parameters
        if each.kind in kinds and each.name != "self"
    }
