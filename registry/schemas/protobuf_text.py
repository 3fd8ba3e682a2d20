"""Write a Protobuf file descriptor as the text of a .proto file, which compiles to the same descriptor.

Declarations keep their order, because messages are named by their position; names of types are absolute.
Comments are not in a descriptor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf import descriptor_pb2, message_factory, text_encoding, text_format
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from google.protobuf.descriptor_pb2 import (
        DescriptorProto,
        EnumDescriptorProto,
        FileDescriptorProto,
        ServiceDescriptorProto,
    )
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import Message


_MAX_NUMBER: Final = 2**29
_MAX_ENUM: Final = 2**31 - 1
_INDENT: Final = "  "
_LABELS: Final = {
    Field.LABEL_OPTIONAL: "optional ",
    Field.LABEL_REQUIRED: "required ",
    Field.LABEL_REPEATED: "repeated ",
}


def proto_text(file: FileDescriptorProto, pool: DescriptorPool) -> str:
    """Return the text of a file; `pool` has it and the files that it imports."""
    return "\n".join(_FileText(file, pool).lines()) + "\n"


def default_json_name(name: str) -> str:
    """Return the JSON name of a field that does not set one."""
    first, *others = name.split("_")
    return first + "".join(each[:1].upper() + each[1:] for each in others)


class _FileText:
    """The lines of one file."""

    def __init__(self, file: FileDescriptorProto, pool: DescriptorPool) -> None:
        self._file = file
        self._pool = pool
        self._syntax = file.syntax or "proto2"

    def lines(self) -> Iterator[str]:
        file = self._file
        if self._syntax == "editions":
            edition = descriptor_pb2.Edition.Name(file.edition).removeprefix("EDITION_")
            yield f'edition = "{edition}";'
        else:
            yield f'syntax = "{self._syntax}";'
        if file.package:
            yield f"package {file.package};"
        for index, name in enumerate(file.dependency):
            public = "public " if index in file.public_dependency else ""
            weak = "weak " if index in file.weak_dependency else ""
            yield f"import {public}{weak}{_quoted(name)};"
        yield from self._option_lines(file.options)
        for message in file.message_type:
            yield from self._message(message)
        for enum in file.enum_type:
            yield from self._enum(enum)
        yield from self._extensions(file.extension)
        for service in file.service:
            yield from self._service(service)

    # -- messages ----------------------------------------------------------------------------------

    def _message(self, message: DescriptorProto) -> Iterator[str]:
        yield f"message {message.name} {{"
        yield from _indented(self._message_body(message))
        yield "}"

    def _message_body(self, message: DescriptorProto) -> Iterator[str]:
        yield from self._option_lines(message.options)
        yield from _reserved(
            [(each.start, each.end - 1) for each in message.reserved_range],
            message.reserved_name,
            _MAX_NUMBER - 1,
            quoted=self._syntax != "editions",
        )
        for each in message.extension_range:
            span = _span(each.start, each.end - 1, _MAX_NUMBER - 1)
            yield f"extensions {span}{self._option_list(each.options)};"
        inline = {each.name: each for each in message.nested_type}
        of_field = {
            each.type_name.rpartition(".")[2]
            for each in message.field
            if each.type == Field.TYPE_GROUP or _is_map(each, inline)
        }
        units = list(self._units(message, inline))
        for nested in message.nested_type:
            if nested.name not in of_field:
                yield from self._message(nested)
                continue
            while units:  # the nested type is declared by a field: keep the order of the types
                types, lines = units.pop(0)
                yield from lines
                if nested.name in types:
                    break
        for _, lines in units:
            yield from lines
        for enum in message.enum_type:
            yield from self._enum(enum)
        yield from self._extensions(message.extension)

    def _units(
        self, message: DescriptorProto, inline: dict[str, DescriptorProto]
    ) -> Iterator[tuple[set[str], list[str]]]:
        """Yield each field, or oneof with its fields: the names of the types in it, and its lines."""
        begun: set[int] = set()
        for field in message.field:
            if not field.HasField("oneof_index") or field.proto3_optional:
                yield {field.type_name.rpartition(".")[2]}, list(self._field(field, inline))
                continue
            if field.oneof_index in begun:
                continue
            begun.add(field.oneof_index)
            oneof = message.oneof_decl[field.oneof_index]
            members = [
                each
                for each in message.field
                if each.HasField("oneof_index") and each.oneof_index == field.oneof_index
            ]
            body = list(self._option_lines(oneof.options))
            for each in members:
                body += self._field(each, inline, in_oneof=True)
            yield (
                {each.type_name.rpartition(".")[2] for each in members},
                [f"oneof {oneof.name} {{", *_indented(body), "}"],
            )

    def _field(
        self, field: Field, inline: dict[str, DescriptorProto], *, in_oneof: bool = False
    ) -> Iterator[str]:
        if _is_map(field, inline):
            key, value = inline[field.type_name.rpartition(".")[2]].field
            kind = f"map<{_type(key)}, {_type(value)}>"
            yield f"{kind} {field.name} = {field.number}{self._field_options(field)};"
            return
        label = "" if in_oneof else self._label(field)
        if field.type == Field.TYPE_GROUP:
            group = inline[field.type_name.rpartition(".")[2]]
            options = self._field_options(field)
            yield f"{label}group {group.name} = {field.number}{options} {{"
            yield from _indented(self._message_body(group))
            yield "}"
            return
        options = self._field_options(field)
        yield f"{label}{_type(field)} {field.name} = {field.number}{options};"

    def _label(self, field: Field) -> str:
        if field.label == Field.LABEL_REPEATED or self._syntax == "proto2" or field.proto3_optional:
            return _LABELS[field.label]
        return ""

    def _field_options(self, field: Field) -> str:
        own = []
        if field.HasField("default_value"):
            own.append(f"default = {_default(field)}")
        if field.json_name and field.json_name != default_json_name(field.name):
            own.append(f"json_name = {_quoted(field.json_name)}")
        return self._option_list(field.options, own)

    # -- enums, extensions, services ---------------------------------------------------------------

    def _enum(self, enum: EnumDescriptorProto) -> Iterator[str]:
        yield f"enum {enum.name} {{"
        body = list(self._option_lines(enum.options))
        body += _reserved(
            [(each.start, each.end) for each in enum.reserved_range],
            enum.reserved_name,
            _MAX_ENUM,
            quoted=self._syntax != "editions",
        )
        body += [
            f"{each.name} = {each.number}{self._option_list(each.options)};" for each in enum.value
        ]
        yield from _indented(body)
        yield "}"

    def _extensions(self, extensions: Sequence[Field]) -> Iterator[str]:
        for field in extensions:
            yield f"extend {field.extendee} {{"
            yield from _indented(self._field(field, {}))
            yield "}"

    def _service(self, service: ServiceDescriptorProto) -> Iterator[str]:
        yield f"service {service.name} {{"
        body = list(self._option_lines(service.options))
        for each in service.method:
            received = f"{'stream ' * each.client_streaming}{each.input_type}"
            returned = f"{'stream ' * each.server_streaming}{each.output_type}"
            options = list(self._option_lines(each.options))
            head = f"rpc {each.name}({received}) returns ({returned})"
            body += [f"{head} {{", *_indented(options), "}"] if options else [f"{head};"]
        yield from _indented(body)
        yield "}"

    # -- options -----------------------------------------------------------------------------------

    def _option_lines(self, options: Message) -> Iterator[str]:
        return (f"option {each};" for each in self._options(options))

    def _option_list(self, options: Message, own: Sequence[str] = ()) -> str:
        found = [*own, *self._options(options)]
        return f" [{', '.join(found)}]" if found else ""

    def _options(self, options: Message) -> Iterator[str]:
        """Yield `name = value` of each option, also of those that the imported files define."""
        try:
            own = self._pool.FindMessageTypeByName(options.DESCRIPTOR.full_name)
        except KeyError:  # no custom options: their definition would have imported it
            known = options
        else:
            known = message_factory.GetMessageClass(own)()
            known.ParseFromString(options.SerializePartialToString())
        for field, value in known.ListFields():
            if field.name == "map_entry":
                continue
            name = f"(.{field.full_name})" if field.is_extension else field.name
            for each in value if field.is_repeated else [value]:
                yield f"{name} = {_option_value(field, each)}"


def _option_value(field: Any, value: Any) -> str:
    if field.message_type is not None:
        return f"{{ {text_format.MessageToString(value, as_one_line=True)} }}"
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[value].name)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | bytes):
        return _quoted(value)
    return repr(value)


def _quoted(value: str | bytes) -> str:
    data = value.encode() if isinstance(value, str) else value
    return f'"{text_encoding.CEscape(data, as_utf8=False)}"'


def _default(field: Field) -> str:
    if field.type == Field.TYPE_STRING:
        return _quoted(field.default_value)
    if field.type == Field.TYPE_BYTES:
        return f'"{field.default_value}"'  # escaped already
    return field.default_value


def _type(field: Field) -> str:
    return field.type_name or Field.Type.Name(field.type).removeprefix("TYPE_").lower()


def _is_map(field: Field, inline: dict[str, DescriptorProto]) -> bool:
    name = field.type_name.rpartition(".")[2]
    return (
        field.type == Field.TYPE_MESSAGE
        and field.label == Field.LABEL_REPEATED
        and name in inline
        and inline[name].options.map_entry
    )


def _reserved(
    spans: Sequence[tuple[int, int]], names: Sequence[str], maximum: int, *, quoted: bool
) -> Iterator[str]:
    if spans:
        yield f"reserved {', '.join(_span(*each, maximum) for each in spans)};"
    if names:
        yield f"reserved {', '.join(_quoted(each) if quoted else each for each in names)};"


def _span(first: int, last: int, maximum: int) -> str:
    if first == last:
        return str(first)
    return f"{first} to {'max' if last == maximum else last}"


def _indented(lines: Iterator[str] | Sequence[str]) -> Iterator[str]:
    return (f"{_INDENT}{each}" for each in lines)
