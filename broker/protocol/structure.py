"""Check the structure of a request before kio reads it.

kio allocates memory for as many elements as an array's length announces: a request of thirty bytes could end
the process. It also accepts null for arrays that must not be null, and refuses unknown tagged fields instead
of ignoring them (KIP-482).
"""

from __future__ import annotations

from dataclasses import Field, fields, is_dataclass
from functools import cache
from typing import Any, Final, NamedTuple, get_args

from .cursor import MAX_ELEMENTS, Cursor, MalformedRequest, write_uvarint

_SIZES: Final = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float64": 8,
    "timedelta_i32": 4,
    "timedelta_i64": 8,
    "uuid": 16,
}


def check_structure(
    message_type: Any, body: memoryview, max_elements: int = MAX_ELEMENTS
) -> memoryview | bytes:
    """Return the message without tagged fields that its schema does not have.

    Raise MalformedRequest if it ends too early, if an array is null that must not be, or if it has more than
    `max_elements`.
    """
    walk = _Walk(body, max_elements)
    walk.entity(_layout(message_type))
    return walk.without_unknown_tags()


class _Array(NamedTuple):
    element: _Piece
    nullable: bool


class _Entity(NamedTuple):
    pieces: tuple[_Piece, ...]
    compact: bool
    tagged: dict[int, _Piece]


class _Nullable(NamedTuple):
    entity: _Piece


_Piece = int | str | _Array | _Entity | _Nullable
"""The encoding of a field: a fixed size, "string", "bytes", "records", an array, or an entity
that may be null."""


class _Walk:
    """A pass over one message."""

    def __init__(self, body: memoryview, max_elements: int) -> None:
        self._body = body
        self._cursor = Cursor(body, max_elements=max_elements)
        self._kept = bytearray()  # the body up to `_kept_to`, without unknown tags
        self._kept_to = 0

    def without_unknown_tags(self) -> memoryview | bytes:
        return bytes(self._kept) + self._body[self._kept_to :] if self._kept_to else self._body

    def entity(self, entity: _Entity) -> None:
        for piece in entity.pieces:
            self._piece(piece, compact=entity.compact)
        if entity.compact:
            self._tagged_fields(entity.tagged)

    def _piece(self, piece: _Piece, *, compact: bool) -> None:
        if isinstance(piece, int):
            self._cursor.skip(piece)
        elif piece == "string":
            self._cursor.string(compact=compact)
        elif piece in ("bytes", "records"):
            self._cursor.data(compact=compact)
        elif isinstance(piece, _Array):
            self._array(piece, compact=compact)
        elif isinstance(piece, _Entity):
            self.entity(piece)
        elif isinstance(piece, _Nullable) and self._cursor.int8() >= 0:
            self._piece(piece.entity, compact=compact)

    def _array(self, array: _Array, *, compact: bool) -> None:
        count = self._cursor.array_length(compact=compact, nullable=array.nullable)
        if isinstance(array.element, int):
            self._cursor.skip(count * array.element)
            return
        for _ in range(count):
            self._piece(array.element, compact=compact)

    def _tagged_fields(self, known: dict[int, _Piece]) -> None:
        cursor = self._cursor
        start = cursor.position
        count = cursor.tag_count()
        kept = []
        for _ in range(count):
            at = cursor.position
            piece = known.get(cursor.uvarint())
            size = cursor.uvarint()
            end = cursor.position + size
            if piece is None:
                cursor.skip(size)
                continue
            self._piece(piece, compact=True)
            if cursor.position != end:
                raise MalformedRequest(
                    f"a tagged field does not have the {size} bytes that it says"
                )
            kept.append(self._body[at:end])
        if len(kept) < count:
            self._kept += self._body[self._kept_to : start]
            write_uvarint(self._kept, len(kept))
            self._kept += b"".join(kept)
            self._kept_to = cursor.position


@cache
def _layout(entity_type: Any) -> _Entity:
    compact = bool(entity_type.__flexible__)
    pieces: list[_Piece] = []
    tagged = {}
    for field in fields(entity_type):
        piece = _field(field)
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = piece
        elif isinstance(piece, int) and pieces and isinstance(pieces[-1], int):
            pieces[-1] += piece
        else:
            pieces.append(piece)
    return _Entity(tuple(pieces), compact, tagged)


def _field(field: Field[Any]) -> _Piece:
    pending, parts = [field.type], []
    while pending:
        parts.append(pending.pop())
        pending += get_args(parts[-1])
    entity: Any = next((each for each in parts if is_dataclass(each)), None)
    if entity is not None:
        layout = _layout(entity)
        size = layout.pieces[0] if len(layout.pieces) == 1 else None
        element: _Piece = size if isinstance(size, int) and not layout.compact else layout
    else:
        kind = field.metadata["kafka_type"]
        element = _SIZES.get(kind, kind)
    nullable = type(None) in get_args(field.type)
    if Ellipsis in parts:
        return _Array(element, nullable=nullable)
    return _Nullable(element) if nullable and entity is not None else element
