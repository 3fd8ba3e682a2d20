"""Classes whose objects are rows: msgspec Struct, dataclass, TypedDict, attrs, pydantic model."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, is_typeddict

import msgspec


def is_row_class(source: object) -> bool:
    """Whether a type can be a row: its fields become columns."""
    return isinstance(source, type) and (
        issubclass(source, msgspec.Struct)
        or is_dataclass(source)
        or is_typeddict(source)
        or is_attrs(source)
        or is_pydantic(source)
    )


def is_attrs(source: object) -> bool:
    """Return whether it is a class of attrs, which may have validators; attrs is not imported."""
    return hasattr(source, "__attrs_attrs__")


def checks_values(cls: type, info: Any) -> bool:
    """Return whether a class that msgspec describes checks more than the types of its fields."""
    is_tagged = getattr(info, "tag", None) is not None
    return is_tagged or hasattr(cls, "__post_init__") or is_attrs(cls)


def is_pydantic(source: object) -> bool:
    """Whether it is a pydantic model; pydantic is not imported."""
    return hasattr(source, "model_validate_json") and hasattr(source, "model_fields")


def fields_of(row: Any) -> dict[str, Any]:
    """Return the fields of a row that is an object, in order; nested objects stay objects.

    Those that a pydantic model has beyond its own (`extra="allow"`) are fields, too.

    Raises:
        Exception: a field is not set, or reading it raises.
    """
    cls: Any = type(row)
    of_class = {name: getattr(row, name) for name in _names_of(cls)}
    return of_class | row.model_extra if getattr(row, "model_extra", None) else of_class


@lru_cache(maxsize=256)
def _names_of(cls: Any) -> tuple[str, ...]:
    """Return the names of a row class's attributes. Their types may be no types of columns."""
    if issubclass(cls, msgspec.Struct):
        return tuple(cls.__struct_fields__)
    if is_dataclass(cls):
        return tuple(each.name for each in fields(cls))
    if is_attrs(cls):
        return tuple(each.name for each in cls.__attrs_attrs__)
    return tuple(cls.model_fields)
