"""Reasons of values that cannot be decoded: one line that names the field."""

from __future__ import annotations

import re
from typing import Final

import msgspec

MALFORMED: Final = "value: "
"""The beginning of a reason that names no field."""

_AT: Final = re.compile(r"(?P<text>.*) - at `\$(?P<path>.*)`\Z", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>.*)`\Z", re.DOTALL)


def reason_of_value(error: Exception) -> str:
    """Describe why a value cannot be decoded: `field status: expected int, got str`."""
    pydantic = getattr(error, "errors", None)
    if callable(pydantic):
        first = pydantic(include_url=False, include_context=False, include_input=False)[0]
        return _of_field(".".join(map(str, first["loc"])), first["msg"])
    text, path = str(error), ""
    if (at := _AT.match(text)) is not None:
        text, path = at["text"], at["path"].lstrip(".")
    if (missing := _MISSING.match(text)) is not None:
        path, text = f"{path}.{missing['name']}".lstrip("."), "missing, and it has no default"
    if isinstance(error, UnicodeDecodeError):
        text = f"invalid UTF-8 ({error.reason})"
    elif not isinstance(error, msgspec.MsgspecError | RecursionError):
        text = f"{type(error).__name__}: {text}"
    return _of_field(path, text)


def _of_field(path: str, text: str) -> str:
    text = text.replace("`", "")
    text = text[:1].lower() + text[1:] if not text[:2].isupper() else text
    return f"field {path}: {text}" if path else f"{MALFORMED}{text}"
