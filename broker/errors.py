"""Errors of requests and of starting the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kio.schema.errors import ErrorCode

_MAX_CHARACTERS: Final = 500


class BrokerError(Exception):
    """The broker cannot start or run; the message says what to do."""


class RequestError(Exception):
    """A request is refused; handlers answer with `code` and the message."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        self.code = code
        self.message = shortened(message)
        super().__init__(self.message)


def shortened(message: str) -> str:
    """Return at most 500 characters of an error message, which may quote a name of any length.

    A field of a response holds 32,767 bytes, and a name needs up to four times its size as a quotation.
    """
    if len(message) <= _MAX_CHARACTERS:
        return message
    return f"{message[: _MAX_CHARACTERS - 3]}..."
