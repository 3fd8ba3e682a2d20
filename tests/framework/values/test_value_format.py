"""The contract of value formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numba
import pyarrow as pa
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from kmr import Avro, Json, Protobuf
from kmr.errors import StrategyError
from kmr.values.avro import kernel as avro_kernel
from kmr.values.decoding import slots
from kmr.values.json import json_kernel
from kmr.values.protobuf import kernel as protobuf_kernel
from kmr.values.registry import framing
from kmr.values.value_format import Decoded, ValueFormat

if TYPE_CHECKING:
    from types import ModuleType

REGISTRY = "http://127.0.0.1:1"
"""It is not asked: no value has a schema id."""

COMPILED = [
    (json_kernel, "run"),
    (avro_kernel, "run"),
    (protobuf_kernel, "run"),
    (slots, "gather"),
    (framing, "gather"),
    (slots, "gather_fixed"),
    (framing, "_schema_ids"),
    (framing, "_prefix_sizes"),
]


class Text(msgspec.Struct):
    text: str = ""


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
        (Json(Text), b'{"text":"x"}'),
        (Json(Text, registry=REGISTRY), b"?"),
        (Avro(Text), b"\2x"),
        (Avro({"type": "fixed", "name": "one", "size": 1}), b"x"),
        (Avro(Text, registry=REGISTRY), b"?"),
        (Protobuf(StringValue), StringValue(value="x").SerializeToString()),
        (Protobuf(StringValue, registry=REGISTRY), b"?"),
    ],
    ids=str,
)
def test_after_warm_up_decoding_compiles_nothing(
    format_: ValueFormat, value: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    signatures: set[Any] = set()

    def watch(module: ModuleType, name: str) -> None:
        function = getattr(module, name)

        def call(*arguments: Any) -> Any:
            signatures.add((module, name, tuple(map(numba.typeof, arguments))))
            return function(*arguments)

        monkeypatch.setattr(module, name, call)

    for module, name in COMPILED:
        watch(module, name)
    format_.warm_up()
    warm = set(signatures)
    format_.decode(pa.array([value, None], pa.binary()))
    assert warm >= signatures
    assert signatures


def test_a_copy_whose_columns_the_registry_knows_warms_up_without_it() -> None:
    Avro(registry=REGISTRY, subject="hits-value").warm_up()
