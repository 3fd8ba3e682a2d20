"""`Json`: values that are JSON objects."""

from __future__ import annotations

import re
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from ...columns.texts import json_misfits
from ...errors import StrategyError
from ..encoding import refuse
from ..registry.registry import PerProcess, RegisteredSchema, Registry
from ..schemas import row_type
from ..typed import TypedFormat
from ..value_format import MALFORMED, Decoded, DecodedObjects, is_bad_utf8
from .json_schema import registered_columns

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Collection, Iterator

    from ..lost_digits import DigitSearch
    from ..schemas import RowType
    from ..typed import Source

_LARGEST_EXPONENT: Final = 10**17  # a Decimal takes it with any digits


def _as_written(number: str) -> Decimal:
    """Return a number of JSON. An exponent beyond those of Decimal becomes the largest."""
    try:
        return Decimal(number)
    except InvalidOperation:
        digits, _, exponent = number.lower().partition("e")
        sign = "-" if exponent.startswith("-") else ""
        return Decimal(f"{digits}e{sign}{_LARGEST_EXPONENT}")


_PLAIN: Final = msgspec.json.Decoder(float_hook=_as_written)
"""Decodes to plain objects with the numbers as they are."""

_ENCODER: Final = msgspec.json.Encoder()

_TRUNCATED: Final = "Input data was truncated"
_NOT_JSON: Final = {
    b"\0": "; a zero byte, as before the id of a schema: set registry= if values have one",
    b"\xef\xbb\xbf": "; a byte order mark, which JSON does not have",
}
"""What to say of values by their first bytes."""
_HALF_PAIR: Final = re.compile(rb'\\u[dD][89abAB][0-9a-fA-F]{2}"')


class Json(TypedFormat):
    """Values that are JSON objects of one type, with Confluent's wire format if there is a registry.

    Example:
        ```python
        from typing import NotRequired, TypedDict

        from kmr import Json

        class Hit(TypedDict):  # or a msgspec Struct, dataclass, pydantic model, pyarrow.Schema
            path: str
            status: int
            ms: NotRequired[float]

        hits = Json(Hit)
        ```

    Args:
        type: see `TypedFormat`. Without one the columns are those of the latest JSON Schema of the subject,
            which each process asks for when it first needs them.
        registry: the registry, or its URL. With a type, reading asks it nothing: values begin with a schema
            id. Writers register the JSON schema of the type.
        subject: where writers register it, `TOPIC-value` by default; where a reader without a type finds it.

    Raises:
        StrategyError: a field has no type of column, or the columns cannot be known.
    """

    def __init__(
        self,
        type: Source | None = None,  # noqa: A002  the user's word
        *,
        registry: Registry | str | None = None,
        subject: str | None = None,
    ) -> None:
        self._registry = Registry(registry) if isinstance(registry, str) else registry
        self._subject = subject
        self._registered: PerProcess[pa.Schema] = PerProcess()
        self._given = type
        if type is not None:
            super().__init__(type)
        elif self._registry is None or subject is None:
            raise StrategyError(
                "Json: its columns are not known; give a type with the fields of a value, or registry= and "
                "subject= for the latest JSON Schema of a subject; to map any object, leave value= out and "
                "call msgspec.json.decode(record.value) in the map"
            )

    @property
    def type(self) -> Source:
        """The type of the values, or the columns that the registry gave."""
        if self._given is not None:
            return self._given
        return self._registered.get(self._ask)

    def __str__(self) -> str:
        return super().__str__() if self._given is not None else f"Json({self._subject})"

    def _ask(self) -> pa.Schema:
        if self._registry is None or self._subject is None:
            raise StrategyError("Json: its columns are not known")
        return registered_columns(self._registry, self._subject)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode values to columns: most without the interpreter lock, unusual ones by msgspec."""
        if self._registry is not None:
            values, unframed = _unframe(values)
            decoded, failed = Json(self.type).decode(values)
            return Decoded(decoded, failed | unframed)
        from .json_columns import plan_of, splice, walk  # LLVM: only where values are decoded

        plan = plan_of(self.type)
        if plan is None or not len(values):
            return super().decode(values)
        columns, is_left = walk(plan, self.schema, values)
        failures: dict[int, str] = {}
        if np.count_nonzero(is_left):
            left = np.flatnonzero(is_left)
            by_msgspec, failed = super().decode(values.take(pa.array(left, pa.int64())))
            failures = {int(left[row]): reason for row, reason in failed.items()}
            spliced = [
                splice(fast, left, slow)
                for fast, slow in zip(columns.columns, by_msgspec.columns, strict=True)
            ]
            columns = pa.RecordBatch.from_arrays(spliced, schema=self.schema)
        return Decoded(columns, failures)

    @property
    def has_schema_ids(self) -> bool:
        return self._registry is not None

    def warm_up(self) -> None:
        """Load the compiled code; see `ValueFormat.warm_up`."""
        known = self._given is not None or self._registered.is_made
        if known:
            empty = pa.array([b"{}"], pa.binary())
            self.decode(empty)
            self.decode_objects(empty)
        Json(pa.schema([("text", pa.string())])).decode(pa.array([b'{"text":"\\n"}'], pa.binary()))

    def decode_objects(self, values: pa.BinaryArray) -> DecodedObjects:
        if self._registry is None:
            return super().decode_objects(values)
        values, unframed = _unframe(values)
        objects, failed = Json(self.type).decode_objects(values)
        return DecodedObjects(objects, failed | unframed)

    def encode(self, rows: pa.Table, topic: str) -> pa.BinaryArray:
        """Encode each row as a JSON object; registers the type's schema at the first call for a topic.

        Times are ISO 8601, decimals text, bytes base64.

        Raises:
            StrategyError: the type has no such columns.
            RowsDoNotFit: the type, or JSON, cannot hold a value.
            RegistryError: the registry refuses the schema, or does not answer.
        """
        if self._registry is None:
            refuse(json_misfits(rows))
            return super().encode(rows, topic)
        from ..registry.framing import prefix  # LLVM, too

        encoded = Json(self.type).encode(rows, topic)
        schema = RegisteredSchema(msgspec.json.encode(_json_schema(self.rows)).decode(), "JSON")
        subject = self._subject or f"{topic}-value"
        first = prefix(self._registry.register(subject, schema))
        return pa.array([first + (each or b"") for each in encoded.to_pylist()], pa.binary())

    def takes_all(self, names: Collection[str]) -> bool:
        return type(self) is Json and self.rows.take_all(names)

    def rounded(self, values: pa.BinaryArray, search: DigitSearch) -> Iterator[tuple[int, str]]:
        for row in search.in_json(values):
            with suppress(msgspec.MsgspecError, RecursionError):  # it is no object
                text = values[row].as_py()
                try:
                    plain = _PLAIN.decode(text)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    if not is_bad_utf8(error):
                        raise
                    # in a field that the type lacks
                    plain = _PLAIN.decode(text.decode(errors="replace"))
                if (reason := search.reason(plain)) is not None:
                    yield row, reason

    def encode_one(self, value: Any) -> bytes:
        return _ENCODER.encode(value)

    @property
    def decoder(self) -> Callable[[Any], Any]:
        return _decoder(self.type)

    def reason(self, value: Any, error: Exception) -> str:
        """Describe why a value cannot be decoded; msgspec takes half of a surrogate pair for an end."""
        is_end = isinstance(error, msgspec.DecodeError) and str(error) == _TRUNCATED
        if is_end and (half := _HALF_PAIR.search(value)) is not None:
            return (
                f"{MALFORMED}JSON is malformed: invalid utf-16 surrogate pair (byte {half.start()})"
            )
        reason = super().reason(value, error)
        hint = next((hint for first, hint in _NOT_JSON.items() if value.startswith(first)), "")
        return f"{reason}{hint}"

    def document(self, value: Any) -> Any:
        try:
            return msgspec.json.decode(value)
        except msgspec.MsgspecError:  # a number beyond the floats
            return _PLAIN.decode(value)

    def decode_as(self, cls: builtins.type, value: bytes) -> object:
        decoded: object = msgspec.json.decode(value, type=cls)
        return decoded


@lru_cache(maxsize=256)
def _decoder(source: type | pa.Schema) -> Callable[[Any], Any]:
    rows = row_type(source)
    if rows.is_pydantic:
        decode: Callable[[Any], Any] = rows.cls.model_validate_json  # type: ignore[attr-defined]
        return decode
    return msgspec.json.Decoder(rows.cls).decode


def _unframe(values: pa.BinaryArray) -> tuple[pa.BinaryArray, dict[int, str]]:
    from ..registry.framing import unframe  # LLVM, too

    return unframe(values)


def _json_schema(rows: RowType) -> dict[str, Any]:
    if rows.is_pydantic:
        schema: dict[str, Any] = rows.cls.model_json_schema()  # type: ignore[attr-defined]
        return schema
    return msgspec.json.schema(rows.cls)
