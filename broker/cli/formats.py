"""How `kmr broker consume` and the console write records, as raw bytes where the format allows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from .terminal import UsageError, text_or_base64

if TYPE_CHECKING:
    from collections.abc import Callable

_ESCAPES: Final = {r"\n": b"\n", r"\t": b"\t", r"\r": b"\r", r"\0": b"\0", r"\\": b"\\"}
_PARTS: Final = re.compile(r"\{(\w+)\}|(\\[ntr0\\])|([^{\\]+|[{\\])")


def _number(name: str) -> Callable[[Any], bytes]:
    return lambda record: b"%d" % getattr(record, name)


FIELDS: Final[dict[str, Callable[[Any], bytes]]] = {
    "topic": lambda record: str(record.topic).encode(),
    "partition": _number("partition"),
    "offset": _number("offset"),
    "timestamp": _number("timestamp"),
    "key": lambda record: record.key or b"",
    "value": lambda record: record.value or b"",
    "headers": lambda record: b",".join(
        name.encode() + b"=" + (value or b"") for name, value in record.headers
    ),
}
"""Fields that a template can use in braces; timestamps are milliseconds since the epoch."""


def _json(record: Any) -> bytes:
    """Return one line of JSON; keys and values that are not UTF-8 are in base64 as `NAME_base64`."""
    fields: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
    for name, value in (("key", record.key), ("value", record.value)):
        fields |= text_or_base64(name, value)
    if record.headers:
        fields["headers"] = [
            {"name": name, **text_or_base64("value", value)} for name, value in record.headers
        ]
    return msgspec.json.encode(fields) + b"\n"


FORMATS: Final[dict[str, str | Callable[[Any], bytes]]] = {
    "value": r"{value}\n",
    "key-value": r"{key}\t{value}\n",
    "full": r"{topic}:{partition}:{offset}\t{key}\t{value}\t{headers}\n",
    "raw": "{value}",
    "json": _json,
}
"""Formats by name; any other text with braces is a template."""


def formatter(form: str) -> Callable[[Any], bytes]:
    """Return a function from a record to its bytes. Raises UsageError."""
    known = FORMATS.get(form, form)
    if not isinstance(known, str):
        return known
    if form not in FORMATS and "{" not in form:
        raise UsageError(
            f"--format {form!r}: expected {', '.join(FORMATS)}, or a template with fields in braces"
            f" such as '{{key}}: {{value}}\\n'"
        )
    parts = [_part(*match.groups()) for match in _PARTS.finditer(known)]
    return lambda record: b"".join(
        [part if type(part) is bytes else part(record) for part in parts]
    )


def _part(field: str | None, escape: str | None, text: str) -> Any:
    if field is not None:
        if field not in FIELDS:
            raise UsageError(
                f"--format: unknown field {{{field}}}; the fields are {', '.join(FIELDS)}"
            )
        return FIELDS[field]
    return _ESCAPES[escape] if escape is not None else text.encode()
