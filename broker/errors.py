"""What can be wrong with a request or with starting the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kio.schema.errors import ErrorCode

__all__ = ["BrokerError", "RequestError"]


class BrokerError(Exception):
    """The broker cannot start or run; the message says what the operator can do."""


class RequestError(Exception):
    """A request is refused; handlers put `code` and the message into their response."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
