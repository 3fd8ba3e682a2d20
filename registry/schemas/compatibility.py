"""Compatibility levels: which schemas must be able to read what which others have written."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from .schema_types import incompatibility

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .schema_types import ParsedSchema


class Level(StrEnum):
    """The levels; a transitive one looks at all earlier versions, another at the latest."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def transitive(self) -> bool:
        """Whether all earlier versions count."""
        return self.endswith("_TRANSITIVE")

    @property
    def reads_earlier(self) -> bool:
        """Whether the new schema must read what earlier ones have written."""
        return self.startswith(("BACKWARD", "FULL"))

    @property
    def read_by_earlier(self) -> bool:
        """Whether earlier schemas must read what the new one will write."""
        return self.startswith(("FORWARD", "FULL"))


class Earlier(NamedTuple):
    """An earlier version of a subject."""

    version: int
    schema_type: str
    schema: ParsedSchema


def incompatibilities(
    level: Level, schema_type: str, schema: ParsedSchema, earlier: Sequence[Earlier]
) -> list[str]:
    """Return why a new schema does not fit to the versions of its subject; empty if it does.

    The messages have the form of Confluent's verbose answers. Call it in a thread.

    Args:
        level: the subject's level.
        schema_type: the type of the new schema.
        schema: the new schema.
        earlier: the subject's versions, oldest first.
    """
    if level is Level.NONE:
        return []
    for version, its_type, its_schema in reversed(earlier if level.transitive else earlier[-1:]):
        if its_type != schema_type:
            description = f"{its_type} in the old schema, {schema_type} in the new one"
            found = [incompatibility("SCHEMA_TYPE_CHANGED", description)]
        else:
            found = []
            if level.reads_earlier:
                found += schema.incompatibilities(its_schema)
            if level.read_by_earlier:
                found += its_schema.incompatibilities(schema)
        if found:
            return [
                *dict.fromkeys(found),
                f"{{oldSchemaVersion: {version}}}",
                f"{{oldSchema: '{its_schema.text}'}}",
                f"{{compatibility: '{level}'}}",
            ]
    return []
