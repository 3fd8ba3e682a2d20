"""Rows as arguments of a message's class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ...columns.texts import excerpt
from ..encoding import DoesNotFit, dict_of
from .messages import TIMESTAMP, WRAPPERS

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor


_FIRST: Final = -62_135_596_800 * 10**6
_LAST: Final = 253_402_300_800 * 10**6 - 1
"""Microseconds since 1970 of the years 1 to 9999."""


def arguments(type_: Descriptor, row: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Return a row as arguments: without nulls, maps as dicts, messages as dicts.

    Raises:
        DoesNotFit: a map has a key twice, an enum no such value, a list a null.
    """
    found: dict[str, Any] = {}
    chosen: dict[str, str] = {}
    for name, value in row.items():
        if value is None:
            continue
        field = type_.fields_by_name[name]
        place = f"{path}{name}"
        oneof = field.containing_oneof
        if oneof is not None and chosen.setdefault(oneof.name, name) != name:
            raise DoesNotFit(
                f"field {place}: the oneof {oneof.name} has values of {chosen[oneof.name]} and {name}"
            )
        message = field.message_type
        if message is not None and message.GetOptions().map_entry:
            of_value = message.fields_by_name["value"]
            pairs = dict_of(value, place).items()
            found[name] = {key: _argument(of_value, each, place) for key, each in pairs}
        elif field.is_repeated:
            found[name] = [_argument(field, each, place) for each in value]
        else:
            found[name] = _argument(field, value, place)
    return found


def _argument(field: FieldDescriptor, value: Any, path: str) -> Any:
    if value is None:
        raise DoesNotFit(f"field {path}: lists and maps cannot hold null")
    enum, message = field.enum_type, field.message_type
    if enum is not None and value not in enum.values_by_name:
        raise DoesNotFit(f"field {path} (enum {enum.full_name}) cannot hold {excerpt(value)}")
    if message is None:
        return value
    if message.full_name in WRAPPERS:
        return {"value": value}
    if message.full_name == TIMESTAMP:
        if not _FIRST <= value <= _LAST:
            raise DoesNotFit(f"field {path}: a Timestamp is of the years 1 to 9999, not {value} us")
        return {"seconds": value // 10**6, "nanos": value % 10**6 * 1000}
    return arguments(message, value, f"{path}.")
