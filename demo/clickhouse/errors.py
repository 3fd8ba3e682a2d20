"""The errors of the embedded ClickHouse."""

from __future__ import annotations

import re
from typing import Self

from framework.errors import KmrError

__all__ = ["ClickHouseError", "ServerError"]

_CODE = re.compile(r"Code: (\d+)\. DB::Exception: ")
_NAME = re.compile(r"\(([A-Z][A-Z0-9_]+)\)")


class ServerError(KmrError):
    """The embedded ClickHouse cannot be started; the message says why and what to do."""


class ClickHouseError(KmrError):
    """A query failed: ClickHouse's message, its error code and that code's symbolic name."""

    def __init__(self, code: int, name: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.name = name

    @classmethod
    def of_engine(cls, message: str) -> Self:
        """From the text of an exception of the engine, which may nest several."""
        code = _CODE.search(message)
        if code is None:
            return cls(1002, "UNKNOWN_EXCEPTION", message)
        names = _NAME.findall(message)
        return cls(int(code[1]), names[-1] if names else "", message[code.end() :].strip())

    def body(self, version: str) -> str:
        """The error as a ClickHouse server words it in an answer."""
        message = str(self)
        if self.name and f"({self.name})" not in message:
            message = f"{message} ({self.name})"
        if "(version " not in message:
            message = f"{message} (version {version})"
        return f"Code: {self.code}. DB::Exception: {message}\n"
