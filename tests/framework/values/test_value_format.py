"""The contract of value formats."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from kmr import Avro, Json, Protobuf
from kmr.errors import StrategyError
from kmr.values.avro import kernel as avro_kernel
from kmr.values.decoding import flat_columns, frame, pieces
from kmr.values.json import json_kernel, json_texts
from kmr.values.protobuf import kernel as protobuf_kernel
from kmr.values.registry import framing
from kmr.values.value_format import Decoded, ValueFormat

REGISTRY = "http://127.0.0.1:1"
"""It is not asked: no value has a schema id."""

LOADED: list[Any] = [
    json_kernel.kernel,
    avro_kernel.kernel,
    protobuf_kernel.kernel,
    flat_columns._kernels,
    pieces._kernels,
    framing._kernels,
    json_texts._kernels,
]


class Text(msgspec.Struct):
    text: str = ""


Wide = msgspec.defstruct("Wide", [(f"n{at}", int) for at in range(9)])


class Sizes(ValueFormat):
    """A format of a user: the size of each value."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("size", pa.int64())])

    def decode(self, values: pa.BinaryArray) -> Decoded:
        sizes = [None if value is None else len(value) for value in values.to_pylist()]
        return Decoded(pa.RecordBatch.from_pydict({"size": sizes}, schema=self.schema), {})


def test_a_format_without_encode_cannot_be_written() -> None:
    with pytest.raises(StrategyError, match="Sizes cannot be written"):
        Sizes().encode(pa.table({"size": [1]}), "topic")


@pytest.mark.parametrize(
    ("format_", "value"),
    [
        (Json(Text), b'{"text":"\\n"}'),
        (Json(Text, registry=REGISTRY), b"?"),
        (Json(Wide), msgspec.json.encode({f"n{at}": at for at in range(9)})),
        (Avro(Text), b"\2x"),
        (Avro(Wide), bytes(9)),
        (Avro({"type": "fixed", "name": "one", "size": 1}), b"x"),
        (Avro(Text, registry=REGISTRY), b"?"),
        (Protobuf(StringValue), StringValue(value="x").SerializeToString()),
        (Protobuf(StringValue, registry=REGISTRY), b"?"),
    ],
    ids=str,
)
def test_after_warm_up_decoding_loads_no_code(
    format_: ValueFormat, value: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for loaded in LOADED:
        loaded.cache_clear()
    format_.warm_up()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("loaded by decoding")

    for module in (flat_columns, frame, pieces, framing, json_texts):
        monkeypatch.setattr(module, "load", refuse)
    format_.decode(pa.array([value, None], pa.binary()))
    assert any(loaded.cache_info().currsize for loaded in LOADED)


def test_a_copy_whose_columns_the_registry_knows_warms_up_without_it() -> None:
    Avro(registry=REGISTRY, subject="hits-value").warm_up()
