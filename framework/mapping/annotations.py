"""What the annotations of a map function say: its arguments, and the type of its rows."""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
import warnings
from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from ..errors import StrategyError, reason_of
from ..frames import kind_of
from ..record import Record
from ..values.row_classes import is_row_class

if TYPE_CHECKING:
    from .inputs import Parameters


def frame_of(function: object) -> str | None:
    """Return what a per-batch function takes, from the annotation of its first parameter (`kmr.frames`)."""
    try:
        first = next(iter(inspect.signature(function).parameters), "")  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return kind_of(_hints(function).get(first))


_SEVERAL: Final = (list, tuple, Sequence, Iterable, Iterator, Generator)


def row_class_of(function: object) -> type | None:
    """Return the class of the rows that a per-record function returns, from its annotation.

    `-> Row | None`, `-> list[Row]` and `-> Iterator[Row]` all name `Row`: a msgspec Struct, dataclass,
    TypedDict or pydantic model. None if there is no annotation, it names another type, or several.
    """
    found = row_classes_of(function)
    return found.pop() if len(found) == 1 else None


def row_classes_of(function: object) -> set[type]:
    """Return all classes of rows that the return annotation names."""
    return _row_classes(_hints(function).get("return"))


def _row_classes(annotation: Any) -> set[type]:
    if is_row_class(annotation):
        return {annotation}
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return {cls for each in arguments for cls in _row_classes(each)}
    if origin in _SEVERAL and arguments:
        return _row_classes(arguments[0])
    return set()


_NO_ROW: Final = (str, bytes, int, float, bool, complex, date, time, timedelta, Decimal, UUID)


def check_result(function: object) -> None:
    """Check that the return annotation of a per-record function names what can become rows.

    Raises:
        StrategyError: it names a single value, such as `str`.
    """
    wrong = _single_value(_hints(function).get("return"))
    if wrong is not None:
        name = getattr(function, "__qualname__", repr(function))
        raise StrategyError(
            f"map={name} returns {wrong.__name__} by its annotation, which is no row; return a dict, a "
            "dataclass or a msgspec Struct, or correct the annotation"
        )


def check_row_classes(function: object, *, branched: bool) -> None:
    """Check that the return annotation can say which class rows have; warn of several without branches.

    Raises:
        StrategyError: a name in it is not known at run time.
    """
    name = getattr(function, "__qualname__", repr(function))
    hints, failures = _resolved(function)
    if (error := failures.get("return")) is not None:
        raise StrategyError(
            f"map={name}: its return annotation cannot be resolved ({reason_of(error)}), so the rows have no "
            "declared types; import the name outside of `if TYPE_CHECKING:`, or remove the annotation"
        )
    if len(classes := _row_classes(hints.get("return"))) > 1 and not branched:
        several = ", ".join(sorted(each.__name__ for each in classes))
        warnings.warn(
            f"map={name} returns rows of several classes by its annotation ({several}), so the types of "
            "their columns are inferred from each batch; give each class its branch (reduce={...}), or "
            "@map_record(schema=...)",
            stacklevel=2,
        )


def _single_value(annotation: Any) -> type | None:
    if isinstance(annotation, type) and issubclass(annotation, _NO_ROW):
        return annotation
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin not in (Union, types.UnionType):
        arguments = arguments[:1] if origin in _SEVERAL else ()
    return next((wrong for each in arguments if (wrong := _single_value(each))), None)


def at_most_one_row(function: object) -> bool:
    """Return whether the return annotation promises at most one row of a record; False without one."""
    annotation = _hints(function).get("return")
    union = get_origin(annotation) in (Union, types.UnionType)
    return all(_is_one_row(each) for each in (get_args(annotation) if union else (annotation,)))


def _is_one_row(annotation: Any) -> bool:
    cls = get_origin(annotation) or annotation
    # A tuple is a row and the name of its branch.
    of_row = isinstance(cls, type) and issubclass(cls, (Mapping, tuple, types.NoneType))
    return of_row or is_row_class(annotation)


RESOURCES: Final = "resources"
"""The name of the parameter that gets the resources of the strategy."""


def check_resources(function: object, *, given: bool) -> None:
    """Check that a map function and its strategy agree about resources.

    Args:
        given: the strategy has `resources=`.

    Raises:
        StrategyError: only one of them has resources.
    """
    name = getattr(function, "__qualname__", repr(function))
    try:
        parameter = inspect.signature(function).parameters.get(RESOURCES)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # compiled code without a signature, or no function
        parameter = None
    if given and parameter is None:
        raise StrategyError(
            f"resources= needs a map with a parameter named resources; map={name} has none"
        )
    if given or parameter is None or parameter.kind is parameter.VAR_KEYWORD:
        return
    if parameter.default is parameter.empty:
        raise StrategyError(
            f"map={name} has a parameter named resources, but the strategy has no resources="
        )


def parameters_of(function: object, *, decoded: bool, tables: Container[str] = ()) -> Parameters:
    """Return what a per-record function is called with: `f(record)`, `f(value)` or `f(value, record)`.

    Args:
        decoded: the strategy has `value=`.
        tables: parameters that come by their names, as `resources` does.

    Raises:
        StrategyError: it has other parameters.
    """
    name = getattr(function, "__qualname__", repr(function))
    try:
        signature = inspect.signature(function)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # compiled code without a signature
        return "value" if decoded else "record"
    parameters = [
        each
        for each in signature.parameters.values()
        if each.name != RESOURCES and each.name not in tables
    ]
    positional = [
        each
        for each in parameters
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    needed = [each for each in positional if each.default is each.empty]
    if not decoded:
        if len(needed) == 2:
            raise StrategyError(
                f"map={name} takes a value and a record, but the strategy has no value=; "
                "set it: value=Json(...)"
            )
        check_call(function, "the record", tables=tables)
        return "record"
    if len(needed) == 2:
        check_call(function, "the value", "the record", tables=tables)
        return "value and record"
    check_call(function, "the value", tables=tables)
    first = (needed or positional or parameters)[0]
    if _hints(function).get(first.name) is Record:
        raise StrategyError(
            f"map={name} takes the record alone, but the strategy has value=; "
            "take the value, or the value and the record, or leave value= out"
        )
    return "value"


def check_call(function: object, *arguments: str, tables: Container[str] = ()) -> None:
    """Check that a map function can be called with these arguments; resources and tables come by name.

    Args:
        arguments: what each is, in the words of the message.

    Raises:
        StrategyError: it takes fewer, or needs others.
    """
    try:
        signature = inspect.signature(function)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # compiled code without a signature
        return
    by_name = {name: None for name in signature.parameters if name == RESOURCES or name in tables}
    try:
        signature.bind(*arguments, **by_name)
    except TypeError as error:
        name = getattr(function, "__qualname__", repr(function))
        given = " and ".join(arguments)
        reason = str(error).replace("too many positional arguments", "it takes fewer parameters")
        raise StrategyError(f"map={name}{signature} is called with {given}: {reason}") from error


def _hints(function: object) -> dict[str, Any]:
    """Return the annotations that can be resolved; a map may have none."""
    return _resolved(function)[0]


def _resolved(function: object) -> tuple[dict[str, Any], dict[str, Exception]]:
    """Return the annotations, and why others cannot be resolved: names under TYPE_CHECKING, for example."""
    if not inspect.isroutine(function):
        function = getattr(function, "__call__", function)  # noqa: B004  annotations of an object's __call__
    with suppress(Exception):
        return get_type_hints(function), {}
    function = inspect.unwrap(function)  # type: ignore[arg-type]
    known = {**vars(collections.abc), **vars(typing), **getattr(function, "__globals__", {})}
    with suppress(TypeError, ValueError):
        known |= inspect.getclosurevars(function).nonlocals  # type: ignore[arg-type]
    hints: dict[str, Any] = {}
    failures: dict[str, Exception] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        try:
            alone = types.SimpleNamespace(__annotations__={name: annotation})
            hints |= get_type_hints(alone, known)
        except Exception as error:  # noqa: BLE001  an annotation is any expression
            failures[name] = error
    return hints, failures
