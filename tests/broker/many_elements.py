"""Requests of every API with very many elements, made from the schemas of the protocol.

An API that is added to the catalogue is among them without a change here.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args
from uuid import UUID

from kmr.broker.apis.catalogue import SERVED
from kmr.broker.protocol.messages import entity_in
from tests.broker.raw_client import request_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from dataclasses import Field

_KNOWN: Final[Mapping[str, Any]] = {
    "allow_auto_topic_creation": False,
    "committed_offset": 1,
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "group_id": "g",
    "max_bytes": 1,
    "member_epoch": 0,
    "num_partitions": 1,
    "partition_max_bytes": 1,
    "protocol_type": "consumer",
    "rebalance_timeout": timedelta(seconds=30),
    "replication_factor": 1,
    "resource_type": 2,
    "response_partition_limit": 2000,
    "session_epoch": -1,
    "session_timeout": timedelta(seconds=30),
    "validate_only": True,
}
"""Values without which a request is refused before its elements are looked at."""


class Shape(NamedTuple):
    """Many elements for one list of an API, which may be within an element of another list.

    Attributes:
        name: of the API, its newest version, and the list.
        key, version: the API's.
        path: the fields that lead to the list.
        existing: whether all elements name what exists; else each has a name of its own.
    """

    name: str
    key: int
    version: int
    path: tuple[str, ...]
    existing: bool

    def request(self, elements: int) -> Any:
        """A request of about so many elements, those within the elements included."""
        schema = request_type(self.key, self.version)
        for name in self.path:
            schema = entity_in(next(each.type for each in fields(schema) if each.name == name))
        inner = sum(_is_list(each) for each in fields(schema)) if schema else 0
        count = (elements - 10) // (1 + inner)
        return self._entity(request_type(self.key, self.version), self.path, count, 0)

    def _entity(self, schema: Any, path: tuple[str, ...], count: int, at: int) -> Any:
        values = {}
        for each in fields(schema):
            entity = entity_in(each.type)
            rest = path[1:] if path[:1] == (each.name,) else ()
            if _is_list(each):
                many = path == (each.name,)
                values[each.name] = tuple(
                    self._entity(entity, rest, count, n if many else at)
                    if entity
                    else self._value(each, n if many else at)
                    for n in range(count if many else 1)
                )
            elif entity is not None:
                values[each.name] = self._entity(entity, rest, count, at)
            else:
                values[each.name] = self._value(each, at)
        return schema(**values)

    def _value(self, field: Field[Any], at: int) -> Any:
        kind = field.metadata["kafka_type"]
        if field.name in _KNOWN and (self.existing or kind != "string"):
            return _KNOWN[field.name]
        if kind.startswith("timedelta"):
            return timedelta(seconds=10)
        values: dict[str, Any] = {
            "bool": False,
            "bytes": b"",
            "float64": 0.0,
            "int8": min(at, 127),
            "int16": min(at, 32_767),
            "records": b"",
            "string": "t" if self.existing else f"name-{at}",
            "uuid": UUID(int=5 if self.existing else at + 1),
        }
        return values.get(kind, at)


def shapes() -> Iterator[Shape]:
    """Two for each list of the requests of each API."""
    for api in SERVED:
        for path in _paths(request_type(api.key, api.max_version)):
            for existing in (True, False):
                name = f"{api.name} {api.max_version} {'.'.join(path)}"
                yield Shape(name, api.key, api.max_version, path, existing)


def _paths(schema: Any) -> Iterator[tuple[str, ...]]:
    for each in fields(schema):
        if _is_list(each):
            yield (each.name,)
            if entity := entity_in(each.type):
                yield from ((each.name, *rest) for rest in _paths(entity))


def _is_list(field: Field[Any]) -> bool:
    return any(each is Ellipsis for each in _arguments(field.type))


def _arguments(field_type: Any) -> Iterator[Any]:
    for each in get_args(field_type):
        yield each
        yield from _arguments(each)
