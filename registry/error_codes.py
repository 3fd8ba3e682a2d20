"""The errors of the registry, with Confluent's error codes."""

from __future__ import annotations

from typing import Final

UNAUTHORIZED: Final = 40101
FORBIDDEN: Final = 40301
SUBJECT_NOT_FOUND: Final = 40401
VERSION_NOT_FOUND: Final = 40402
SCHEMA_NOT_FOUND: Final = 40403
SUBJECT_SOFT_DELETED: Final = 40404
SUBJECT_NOT_SOFT_DELETED: Final = 40405
VERSION_SOFT_DELETED: Final = 40406
VERSION_NOT_SOFT_DELETED: Final = 40407
LEVEL_NOT_CONFIGURED: Final = 40408
MODE_NOT_CONFIGURED: Final = 40409
INCOMPATIBLE: Final = 409
INVALID_SCHEMA: Final = 42201
INVALID_VERSION: Final = 42202
INVALID_LEVEL: Final = 42203
INVALID_MODE: Final = 42204
NOT_PERMITTED: Final = 42205
REFERENCE_EXISTS: Final = 42206
INVALID_SUBJECT: Final = 42208
TOO_LARGE: Final = 413
TOO_BUSY: Final = 429
STORE_FAILED: Final = 50001
_MOST_CHARACTERS: Final = 500


class RequestRefused(Exception):
    """A request is refused: `code` is Confluent's, its first three digits are the HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        message = message.encode(errors="replace").decode()  # it may quote a lone surrogate
        shorten = code != INCOMPATIBLE and len(message) > _MOST_CHARACTERS
        self.message = f"{message[: _MOST_CHARACTERS - 3]}..." if shorten else message
        super().__init__(self.message)

    @property
    def status(self) -> int:
        """The HTTP status."""
        return int(str(self.code)[:3])


def invalid_schema(reason: str) -> RequestRefused:
    """Return the error for a schema that cannot be parsed."""
    return RequestRefused(INVALID_SCHEMA, f"Invalid schema: {reason}")


def subject_not_found(subject: str) -> RequestRefused:
    """Return the error for a subject that does not exist."""
    return RequestRefused(SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")


def version_not_found(version: int | str) -> RequestRefused:
    """Return the error for a version that does not exist."""
    return RequestRefused(VERSION_NOT_FOUND, f"Version {version} not found.")


def schema_not_found(schema_id: int | str | None = None) -> RequestRefused:
    """Return the error for an id or GUID, or for the schema of a request, that is not registered."""
    what = "Schema" if schema_id is None else f"Schema {schema_id}"
    return RequestRefused(SCHEMA_NOT_FOUND, f"{what} not found")
