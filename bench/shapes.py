"""Values of many shapes: wide, nested, long, with nulls, numbers of all lengths; and their schemas."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from msgspec import inspect

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

_BYTES = 4_000_000  # of the values of one shape


class Shape(NamedTuple):
    """One shape: the type, and how a value of it is made."""

    name: str
    type: type
    make: Callable[[random.Random], dict[str, Any]]

    def values(self) -> list[dict[str, Any]]:
        """Make values, the same in each run."""
        source = random.Random(7)
        size = len(json.dumps(self.make(source)))
        return [self.make(source) for _ in range(max(4, min(20_000, _BYTES // size)))]


class Point(msgspec.Struct):
    """A nested object."""

    x: int
    y: float
    name: str


def _scalar(at: int, source: random.Random) -> Any:
    return (source.randrange(10_000), round(source.random() * 100, 2), f"text {at}")[at % 3]


def _flat(fields: int) -> type:
    kinds = (int, float, str)
    return msgspec.defstruct(
        "Flat", [(f"field_{at}", kinds[at % 3] | None, None) for at in range(fields)]
    )


def _record(fields: int) -> Callable[[random.Random], dict[str, Any]]:
    return lambda source: {f"field_{at}": _scalar(at, source) for at in range(fields)}


def _reversed(fields: int) -> Callable[[random.Random], dict[str, Any]]:
    make = _record(fields)
    return lambda source: dict(reversed(make(source).items()))


def _shuffled(fields: int) -> Callable[[random.Random], dict[str, Any]]:
    make = _record(fields)

    def shuffle(source: random.Random) -> dict[str, Any]:
        pairs = list(make(source).items())
        source.shuffle(pairs)
        return dict(pairs)

    return shuffle


def _some(fields: int, change: Callable[[dict[str, Any], str], object]) -> Any:
    make = _record(fields)

    def some(source: random.Random) -> dict[str, Any]:
        value = make(source)
        for name in source.sample(list(value), fields // 2):
            change(value, name)
        return value

    return some


def _point(source: random.Random) -> dict[str, Any]:
    return {"x": source.randrange(1000), "y": source.random(), "name": f"p{source.randrange(99)}"}


def _deep(levels: int) -> type:
    inner: Any = int
    for _ in range(levels):
        inner = msgspec.defstruct("Deep", [("inner", inner), ("n", int)])
    return inner  # type: ignore[no-any-return]


def _nest(levels: int) -> Callable[[random.Random], dict[str, Any]]:
    def make(source: random.Random) -> dict[str, Any]:
        value: Any = source.randrange(99)
        for level in range(levels):
            value = {"inner": value, "n": level}
        return value  # type: ignore[no-any-return]

    return make


def _one(kind: Any) -> type:
    return msgspec.defstruct("One", [("value", kind)])


def _value(make: Callable[[random.Random], Any]) -> Callable[[random.Random], dict[str, Any]]:
    return lambda source: {"value": make(source)}


def _list(size: int, make: Callable[[random.Random], Any]) -> Callable[[random.Random], Any]:
    return _value(lambda source: [make(source) for _ in range(size)])


def _map(source: random.Random) -> dict[str, int]:
    return {f"key{at}": source.randrange(99) for at in range(30)}


def _exponent(source: random.Random) -> float:
    return float(source.random() * 10.0 ** source.randrange(-99, 99))


def _text(size: int, piece: str) -> Callable[[random.Random], dict[str, Any]]:
    text = (piece * (size // len(piece) + 1))[:size]
    return _value(lambda source: f"{source.randrange(10)}{text}")


def _ten(kind: Any) -> type:
    return msgspec.defstruct("Ten", [(f"field_{at}", kind) for at in range(10)])


def _tens(make: Callable[[random.Random], Any]) -> Callable[[random.Random], dict[str, Any]]:
    return lambda source: {f"field_{at}": make(source) for at in range(10)}


def _integer(digits: int) -> Callable[[random.Random], int]:
    return lambda source: source.randrange(10 ** (digits - 1), min(10**digits, 2**63))


_WORDS = "the quick brown fox jumps over the lazy dog "
_ODD = 'Grüße aus "Köln"\\\n und 100 Bäume '

SHAPES: list[Shape] = [
    *(Shape(f"{n} fields", _flat(n), _record(n)) for n in (2, 10, 50, 200, 1000)),
    *(Shape(f"{n} fields, backwards", _flat(n), _reversed(n)) for n in (50, 1000)),
    *(Shape(f"{n} fields, in any order", _flat(n), _shuffled(n)) for n in (10, 50)),
    *(Shape(f"2 of {n} fields used", _flat(2), _record(n)) for n in (10, 200)),
    Shape("50 fields, half null", _flat(50), _some(50, lambda v, name: v.update({name: None}))),
    Shape("50 fields, half missing", _flat(50), _some(50, lambda v, name: v.pop(name))),
    Shape("a list of 20 objects", _one(list[Point]), _list(20, _point)),
    Shape("a list of 100 integers", _one(list[int]), _list(100, lambda r: r.randrange(10**6))),
    Shape("a list of 20 texts", _one(list[str]), _list(20, lambda r: f"tag {r.randrange(99)}")),
    Shape("a map of 30 pairs", _one(dict[str, int]), _value(_map)),
    Shape("lists in lists", _one(list[list[int]]), _list(10, lambda r: [r.randrange(99)] * 5)),
    Shape("objects 8 deep", _deep(8), _nest(8)),
    *(Shape(f"10 integers of {n} digits", _ten(int), _tens(_integer(n))) for n in (1, 5, 10, 19)),
    Shape("10 floats of 17 digits", _ten(float), _tens(lambda r: r.random())),
    Shape("10 floats with exponents", _ten(float), _tens(_exponent)),
    *(
        Shape(f"a text of {n:,} bytes", _one(str), _text(n, _WORDS))
        for n in (10, 1000, 100_000, 1_000_000)
    ),
    *(
        Shape(f"a text of {n:,}, escapes and umlauts", _one(str), _text(n, _ODD))
        for n in (10, 1000, 150_000)
    ),
]


def avro_schema(type_: type) -> dict[str, Any]:
    """Return the Avro schema of a type."""
    schema: dict[str, Any] = _avro(inspect.type_info(type_), "Top")
    return schema


def _avro(kind: Any, name: str) -> Any:
    match kind:
        case inspect.StructType():
            fields = [
                {"name": each.name, "type": _avro(each.type, f"{name}_{each.name}")}
                for each in kind.fields
            ]
            return {"type": "record", "name": name, "fields": fields}
        case inspect.UnionType():
            return ["null", *(_avro(each, name) for each in _beside_none(kind))]
        case inspect.ListType():
            return {"type": "array", "items": _avro(kind.item_type, name)}
        case inspect.DictType():
            return {"type": "map", "values": _avro(kind.value_type, name)}
        case _:
            names: dict[Any, str] = {
                inspect.IntType: "long",
                inspect.FloatType: "double",
                inspect.StrType: "string",
            }
            return names[type(kind)]


def _beside_none(kind: inspect.UnionType) -> list[inspect.Type]:
    return [each for each in kind.types if not isinstance(each, inspect.NoneType)]


def message_class(type_: type) -> type[Message] | None:
    """Return the Protobuf class of a type; None if it has lists of lists."""
    file = FileDescriptorProto(name="shape.proto", package="shape", syntax="proto3")
    try:
        name = _message(file, inspect.type_info(type_))
    except NotImplementedError:
        return None
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(name[1:]))


def _message(file: FileDescriptorProto, kind: Any) -> str:
    made = file.message_type.add(name=f"M{len(file.message_type)}")
    for number, each in enumerate(kind.fields, 1):
        type_ = each.type
        if isinstance(type_, inspect.UnionType):
            (type_,) = _beside_none(type_)
        field = made.field.add(name=each.name, number=number)
        field.label = FieldDescriptorProto.LABEL_OPTIONAL
        if isinstance(type_, inspect.DictType):
            entry = made.nested_type.add(name=f"{each.name.title().replace('_', '')}Entry")
            entry.options.map_entry = True
            for place, (part, inner) in enumerate(
                [("key", type_.key_type), ("value", type_.value_type)], 1
            ):
                one = entry.field.add(name=part, number=place)
                one.label = FieldDescriptorProto.LABEL_OPTIONAL
                _set_type(file, one, inner)
            field.label = FieldDescriptorProto.LABEL_REPEATED
            field.type = FieldDescriptorProto.TYPE_MESSAGE
            field.type_name = f".shape.{made.name}.{entry.name}"
            continue
        if isinstance(type_, inspect.ListType):
            field.label, type_ = FieldDescriptorProto.LABEL_REPEATED, type_.item_type
        _set_type(file, field, type_)
    return f".shape.{made.name}"


def _set_type(file: FileDescriptorProto, field: FieldDescriptorProto, kind: Any) -> None:
    if isinstance(kind, inspect.StructType):
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = _message(file, kind)
        return
    if isinstance(kind, inspect.ListType):
        raise NotImplementedError
    types: dict[Any, Any] = {
        inspect.IntType: FieldDescriptorProto.TYPE_INT64,
        inspect.FloatType: FieldDescriptorProto.TYPE_DOUBLE,
        inspect.StrType: FieldDescriptorProto.TYPE_STRING,
    }
    field.type = types[type(kind)]
