"""The contract of a type of schemas, and the types that the registry knows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, NamedTuple

from ..error_codes import invalid_schema

if TYPE_CHECKING:
    from collections.abc import Sequence


AVRO: Final = "AVRO"
JSON: Final = "JSON"
PROTOBUF: Final = "PROTOBUF"
SCHEMA_TYPES: Final = (JSON, PROTOBUF, AVRO)


class Dependency(NamedTuple):
    """The text of a schema that another one refers to by `name`."""

    name: str
    text: str


class ParsedSchema(ABC):
    """A valid schema; made by `parse_schema`. Its members may take CPU time: use them in a thread."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The schema in its canonical form, which is stored.

        What does not change its meaning, such as white space, is the same in equal schemas.
        """

    @abstractmethod
    def normalized(self) -> str:
        """Return the text in its normal form, in which the order of properties does not count either."""

    @abstractmethod
    def incompatibilities(self, writer: ParsedSchema) -> list[str]:
        """Return why a reader with this schema cannot read what `writer` (of the same type) has written.

        Empty if it can read everything.
        """

    def serialized(self) -> str | None:
        """Return the schema in the binary form of its type, in base64; None if the type has none."""
        return None


def incompatibility(kind: str, description: str) -> str:
    """Return a reason as Confluent's registry words it in verbose answers."""
    return f"{{errorType:'{kind}', description:'{description}'}}"


def parse_schema(
    schema_type: str, text: str, dependencies: Sequence[Dependency] = ()
) -> ParsedSchema:
    """Parse a schema; call it in a thread.

    Args:
        schema_type: one of `SCHEMA_TYPES`.
        text: as a client sends it, or as it is stored.
        dependencies: the schemas that it refers to, also indirectly; each after those that it refers to.

    Raises:
        RequestRefused: the schema is invalid, or the type is unknown.
    """
    # Each type's library is imported when a schema of that type is first met.
    if not text.strip():
        raise invalid_schema("it is empty")
    if schema_type == AVRO:
        from .avro_schema import AvroSchema

        return AvroSchema(text, dependencies)
    if schema_type == JSON:
        from .json_schema import JsonSchema

        return JsonSchema(text, dependencies)
    if schema_type == PROTOBUF:
        from .protobuf_schema import ProtobufSchema

        return ProtobufSchema(text, dependencies)
    raise invalid_schema(f"unknown schema type {schema_type!r}; use {', '.join(SCHEMA_TYPES)}")
