"""Whether a reader with one Protobuf schema can read what a writer with another has written.

The rules are those of Confluent's registry: fields are known by their numbers, so that they may be added,
removed and renamed; their type may change within a group of the same encoding. Incompatible are: another
type, a message that was removed, a required field that was added or removed, a field that was removed from a
oneof that stays, and existing fields that were moved into a oneof, unless it is new and there is only one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

from .schema_types import incompatibility

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto


_GROUPS: Final = (
    {
        *(Field.TYPE_INT32, Field.TYPE_UINT32, Field.TYPE_INT64, Field.TYPE_UINT64),
        *(Field.TYPE_BOOL, Field.TYPE_ENUM),
    },
    {Field.TYPE_SINT32, Field.TYPE_SINT64},
    {Field.TYPE_FIXED32, Field.TYPE_SFIXED32},
    {Field.TYPE_FIXED64, Field.TYPE_SFIXED64},
    {Field.TYPE_STRING, Field.TYPE_BYTES},
)
"""Types of the same encoding."""
_OF_ANY_LABEL: Final = frozenset(
    (Field.TYPE_STRING, Field.TYPE_BYTES, Field.TYPE_MESSAGE, Field.TYPE_GROUP)
)
"""Types of which one value is read like the last of several."""
_NAMED: Final = frozenset((Field.TYPE_MESSAGE, Field.TYPE_GROUP))


class Files:
    """The messages of a file and of those that it imports."""

    def __init__(self, files: Sequence[FileDescriptorProto]) -> None:
        """`files`: the file itself is the last."""
        self.package = files[-1].package
        self.own = [each.name for each in files[-1].message_type]
        self.messages: dict[str, DescriptorProto] = {}
        for file in files:
            scope = f".{file.package}" if file.package else ""
            for message in file.message_type:
                self._add(scope, message)

    def own_message(self, name: str) -> tuple[str, DescriptorProto] | None:
        """Return a message of the file itself, by its name without the package: its full name, and it."""
        full = f".{self.package}.{name}" if self.package else f".{name}"
        found = self.messages.get(full)
        return None if found is None else (full, found)

    def local(self, name: str) -> str:
        """Return a full name without the file's package, which does not count."""
        return name.removeprefix(f".{self.package}." if self.package else ".")

    def _add(self, scope: str, message: DescriptorProto) -> None:
        name = f"{scope}.{message.name}"
        self.messages[name] = message
        for each in message.nested_type:
            self._add(name, each)


class _ProtobufDifference(NamedTuple):
    kind: str
    description: str


def incompatibilities(reader: Files, writer: Files) -> list[str]:
    """Return why the reader cannot read what the writer has written; empty if it can."""
    return [incompatibility(*each) for each in _ProtobufComparison(reader, writer).files()]


class _ProtobufComparison:
    """One comparison: messages of the file itself by name, others where fields refer to them."""

    def __init__(self, reader: Files, writer: Files) -> None:
        self._reader = reader
        self._writer = writer
        self._seen: set[tuple[str, str]] = set()

    def files(self) -> Iterator[_ProtobufDifference]:
        for name in self._writer.own:
            old, new = self._writer.own_message(name), self._reader.own_message(name)
            if old is None:
                continue
            if new is None:
                yield _ProtobufDifference("MESSAGE_REMOVED", f"the message {name} was removed")
            else:
                yield from self._messages(new[0], old[0])

    def _messages(self, reader_name: str, writer_name: str) -> Iterator[_ProtobufDifference]:
        if (reader_name, writer_name) in self._seen:
            return
        self._seen.add((reader_name, writer_name))
        reader, writer = self._reader.messages[reader_name], self._writer.messages[writer_name]
        new = {each.number: each for each in reader.field}
        old = {each.number: each for each in writer.field}
        for number in new.keys() & old.keys():
            yield from self._fields(new[number], old[number], reader_name)
        for fields, others, change in ((new, old, "ADDED"), (old, new, "REMOVED")):
            for number in fields.keys() - others.keys():
                if fields[number].label == Field.LABEL_REQUIRED:
                    yield _ProtobufDifference(
                        f"REQUIRED_FIELD_{change}",
                        f"the required field {fields[number].name} of {reader_name} was"
                        f" {change.lower()}",
                    )
        yield from _oneofs(reader, writer, reader_name)
        kept = {each.name for each in reader.nested_type}
        for each in writer.nested_type:
            if each.name in kept:
                yield from self._messages(
                    f"{reader_name}.{each.name}", f"{writer_name}.{each.name}"
                )
            elif not each.options.map_entry:
                yield _ProtobufDifference(
                    "MESSAGE_REMOVED", f"{reader_name}.{each.name} was removed"
                )

    def _fields(self, new: Field, old: Field, message: str) -> Iterator[_ProtobufDifference]:
        place = f"the field {new.name} ({new.number}) of {message}"
        if new.type != old.type:
            together = {new.type, old.type}
            if not any(together <= group for group in _GROUPS):
                before, after = (Field.Type.Name(each.type)[5:].lower() for each in (old, new))
                kind = "FIELD_KIND_CHANGED" if together & _NAMED else "FIELD_SCALAR_KIND_CHANGED"
                yield _ProtobufDifference(kind, f"the type of {place} was {before}, is {after}")
                return
        elif new.type in _NAMED:
            if self._reader.local(new.type_name) != self._writer.local(old.type_name):
                yield _ProtobufDifference(
                    "FIELD_NAMED_TYPE_CHANGED",
                    f"the type of {place} was {old.type_name}, is {new.type_name}",
                )
                return
            yield from self._messages(new.type_name, old.type_name)
        repeated = Field.LABEL_REPEATED
        if (new.label == repeated) != (old.label == repeated) and new.type not in _OF_ANY_LABEL:
            yield _ProtobufDifference(
                "FIELD_NUMERIC_LABEL_CHANGED", f"{place} changed from or to repeated"
            )
        required = Field.LABEL_REQUIRED
        if (new.label == required) != (old.label == required):
            change = "ADDED" if new.label == required else "REMOVED"
            yield _ProtobufDifference(
                f"REQUIRED_FIELD_{change}", f"{place} changed from or to required"
            )


def _oneofs(
    reader: DescriptorProto, writer: DescriptorProto, name: str
) -> Iterator[_ProtobufDifference]:
    new, old = _members(reader), _members(writer)
    before = {each.number for each in writer.field}
    remaining = {each.number for each in reader.field}
    for oneof, numbers in old.items():
        if oneof in new and numbers - remaining:
            yield _ProtobufDifference(
                "ONEOF_FIELD_REMOVED", f"a field was removed from the oneof {oneof} of {name}"
            )
    for oneof, numbers in new.items():
        moved = (numbers & before) - old.get(oneof, set())
        if moved and oneof in old:
            yield _ProtobufDifference(
                "FIELD_MOVED_TO_EXISTING_ONEOF",
                f"a field was moved into the oneof {oneof} of {name}",
            )
        elif len(moved) > 1 and not any(moved <= each for each in old.values()):
            yield _ProtobufDifference(
                "MULTIPLE_FIELDS_MOVED_TO_ONEOF",
                f"several fields were moved into the oneof {oneof} of {name}",
            )


def _members(message: DescriptorProto) -> dict[str, set[int]]:
    """Return the numbers of the fields of each oneof, without those that stand for `optional`."""
    found: dict[str, set[int]] = {}
    for field in message.field:
        if field.HasField("oneof_index") and not field.proto3_optional:
            name = message.oneof_decl[field.oneof_index].name
            found.setdefault(name, set()).add(field.number)
    return found
