"""Errors of requests and of starting the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kio.schema.errors import ErrorCode

__all__ = ["BrokerError", "RequestError"]


class BrokerError(Exception):
    """The broker cannot start or run; the message says what to do."""


class RequestError(Exception):
    """A request is refused; handlers answer with `code` and the message."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
