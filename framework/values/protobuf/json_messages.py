"""`google.protobuf.Struct`, `Value` and `ListValue`, which have JSON of any form, as text and back."""

from __future__ import annotations

import json
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import json_format, struct_pb2

from ...columns.texts import excerpt
from ..encoding import DoesNotFit

if TYPE_CHECKING:
    from google.protobuf.message import Message

JSON_TYPES: Final[dict[str, type[Message]]] = {
    cls.DESCRIPTOR.full_name: cls
    for cls in (struct_pb2.Struct, struct_pb2.Value, struct_pb2.ListValue)
}


def json_of(cls: type[Message], data: bytes) -> str:
    """Return an encoded message as text, with sorted keys: the same bytes make the same text.

    Raises:
        ValueError: it is damaged, or has a number that JSON has not.
    """
    try:
        message = cls.FromString(data)
    except Exception as error:  # DecodeError, which is no ValueError
        raise ValueError(str(error)) from error
    plain = json_format.MessageToDict(message)
    return json.dumps(plain, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def message_of(cls: type[Message], text: str, path: str) -> Message:
    """Return text as a message. Raises DoesNotFit: it is no such JSON, or would change."""

    def refuse(what: object) -> Any:
        raise DoesNotFit(f"field {path} ({cls.DESCRIPTOR.full_name}) cannot hold {excerpt(what)}")

    def whole(digits: str) -> float:
        number = float(digits)
        return number if abs(number) < 2**53 or int(digits) == int(number) else refuse(int(digits))

    def inexact(digits: str) -> float:
        number = float(digits)
        is_zero = not digits.lower().partition("e")[0].strip("-0.")
        return number if isfinite(number) and (number or is_zero) else refuse(digits)

    def fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return dict(pairs) if len(dict(pairs)) == len(pairs) else refuse(pairs)

    try:
        plain = json.loads(
            text,
            parse_int=whole,
            parse_float=inexact,
            parse_constant=refuse,
            object_pairs_hook=fields,
        )
        message = cls()
        json_format.ParseDict(plain, message)
    except (ValueError, RecursionError, OverflowError, json_format.Error) as error:
        if isinstance(error, DoesNotFit):
            raise
        return refuse(text)  # type: ignore[no-any-return]
    return message
