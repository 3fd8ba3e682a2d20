"""Values of declared fields as Arrow's Python values: Enums by their values, objects as dicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from ..columns.texts import excerpt
from ..errors import as_exception, reason_of
from .row_classes import fields_of, is_row_class

if TYPE_CHECKING:
    from enum import Enum

    from .schemas import SchemaField

Convert: TypeAlias = Callable[[Any], Any]
"""Makes Arrow's Python value of a value that is not None. It may raise any exception."""


class Unfit(Exception):
    """A value of another class than the one that is declared; the text is the whole reason."""

    def __init__(self, declared: str, value: object, why: str = "") -> None:
        super().__init__(f"{declared} cannot hold {excerpt(value)}{why}")


def converted(
    values: list[Any], convert: Convert, declared: str, refused: dict[int, str]
) -> list[Any]:
    """Convert the values of a column; one that cannot be converted is None, and `refused` gets its reason.

    Args:
        declared: what the values are by their annotation, for the reasons.
    """
    try:
        return [None if value is None else convert(value) for value in values]
    except BaseException:  # noqa: BLE001  an object of the user's may raise anything
        made = []
    for row, value in enumerate(values):
        try:
            made.append(None if value is None else convert(value))
        except Unfit as unfit:
            refused[row] = str(unfit)
            made.append(None)
        except BaseException as error:  # noqa: BLE001
            why = reason_of(as_exception(error))
            refused[row] = str(Unfit(declared, value, f" ({why})"))
            made.append(None)
    return made


def uuid_text(value: Any) -> str:
    """Return the text of a UUID, of any library's class; text stays as it is."""
    if isinstance(value, UUID | str) or type(value).__name__ == "UUID":
        return str(value)
    raise Unfit("UUID", value)


def enum_value(cls: type[Enum]) -> Convert:
    """Return a function that makes its value of a member; a value of the Enum stays as it is."""
    values = {key: member.value for member in cls for key in (member, member.value)}

    def convert(value: Any) -> Any:
        try:
            return values[value]
        except (KeyError, TypeError):
            raise Unfit(cls.__name__, value) from None

    return convert


def listed(convert: Convert | None, declared: str) -> Convert:
    """Return a function that makes a list of a collection."""

    def convert_all(items: Any) -> list[Any]:
        if isinstance(items, str | bytes | bytearray | Mapping):
            raise Unfit(declared, items)
        if convert is None:
            return list(items)
        return [None if item is None else convert(item) for item in items]

    return convert_all


def mapped(key: Convert | None, item: Convert | None) -> Convert:
    """Return a function that makes a dict of a mapping."""
    if key is None and item is None:
        return dict
    return lambda items: {
        (name if key is None else key(name)): (
            value if item is None or value is None else item(value)
        )
        for name, value in items.items()
    }


def fields_converted(cls: type, columns: tuple[SchemaField, ...]) -> Convert:
    """Return a function that makes a dict of an object of a class, of a dict, or of another row's object.

    Args:
        columns: the fields of the class.
    """
    names = {column.name for column in columns}

    def convert(item: Any) -> dict[str, Any]:
        if type(item) is cls:
            found = [getattr(item, column.attribute) for column in columns]
        else:
            fields = _fields(item, cls)
            for name in fields.keys() - names:
                if fields[name] is not None:
                    raise Unfit(cls.__name__, item, f": it lacks the field {excerpt(name)}")
            found = [fields.get(column.name) for column in columns]
        return {
            column.name: value if column.convert is None or value is None else column.convert(value)
            for column, value in zip(columns, found, strict=True)
        }

    return convert


def _fields(item: Any, cls: type) -> Mapping[str, Any]:
    if isinstance(item, Mapping):
        return item
    if is_row_class(type(item)):
        return fields_of(item)
    raise Unfit(cls.__name__, item)
