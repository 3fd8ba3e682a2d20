"""Patterns of JSON schemas, matched in a time that grows with the text alone.

A schema comes from a client, and Python's `re` takes hours for `^(a+)+$` and 40 letters, during which the
broker does nothing else. RE2, which Arrow has, does not go back: what it cannot express (look-around,
back-references, escapes of JavaScript) is an `UnknownPattern`.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from jsonschema import Draft7Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

if TYPE_CHECKING:
    from collections.abc import Iterator

    from referencing._core import Resolver


class UnknownPattern(Exception):
    """RE2 does not know the pattern."""


class TooComplex(Exception):
    """A schema refers to itself, or to others, so often that a value or a comparison would take too long."""


def matches(pattern: str, text: str) -> bool:
    """Return whether a pattern matches a part of a text. Raises UnknownPattern."""
    import pyarrow as pa  # the broker needs it for nothing else
    import pyarrow.compute as pc

    try:
        return bool(pc.match_substring_regex(pa.scalar(text), pattern=pattern).as_py())
    except pa.ArrowInvalid as error:
        raise UnknownPattern(pattern) from error


def _pattern(_: Any, pattern: str, value: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(value, str) and not matches(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: dict[str, Any], value: Any, schema: Any
) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        for pattern, below in patterns.items():
            for name, each in value.items():
                if matches(pattern, name):
                    yield from validator.descend(each, below, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, below: Any, value: Any, schema: Any
) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, each in value.items():
            if name not in known and not any(matches(pattern, name) for pattern in patterns):
                yield from validator.descend(each, below, path=name)


_MOST_REFERENCES: Final = 5_000
_references: ContextVar[Iterator[int]] = ContextVar("_references")
"""Numbers for the references that the check of a value may follow."""


def _reference(validator: Any, reference: str, value: Any, schema: Any) -> Iterator[Any]:
    if next(_references.get(), None) is None:
        raise TooComplex
    yield from _follow(validator, reference, value, schema)


_follow: Any = Draft7Validator.VALIDATORS["$ref"]
_Validator: Any = extend(  # type: ignore[no-untyped-call]
    Draft7Validator,
    {
        "$ref": _reference,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    },
)


def accepts(schema: Any, resolver: Resolver[Any], value: object) -> bool:
    """Whether a schema accepts a value; False if that is not known. Raises TooComplex."""
    _references.set(iter(range(_MOST_REFERENCES)))
    try:
        return not any(_Validator({}).descend(value, schema, resolver=resolver))
    except UnknownPattern:
        return False
