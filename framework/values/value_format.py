"""The contract of value formats: how the bytes of values (or keys) become columns, and back."""

from __future__ import annotations

import re
from abc import abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from ..arguments import Checked
from ..columns.texts import excerpt, python_values
from ..errors import StrategyError, reason_of, storable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    import pyarrow as pa


REQUIRED: Final[dict[bytes | str, bytes | str]] = {b"kmr": b"null in deleted rows alone"}
"""Metadata of a column of changes that is null in deleted rows alone."""


class RowsDoNotFit(StrategyError):
    """Rows have values that a format cannot encode; the others can be encoded without them.

    Args:
        failures: the reason for each row (from 0); it names the field and the value.
        general: the reasons that are about a column, not about a value.
    """

    def __init__(self, failures: Mapping[int, str], general: Collection[str] = ()) -> None:
        super().__init__(next(iter(failures.values())))
        self.failures = failures
        self.general = frozenset(general)


class Decoded(NamedTuple):
    """The values of a batch as columns.

    Attributes:
        columns: one row for each value, in order; a row that failed, or whose value is null, holds nulls.
        failures: the reason for each row (from 0) that cannot be decoded; it names the field:
            `field status: expected an integer, found "x"`.
    """

    columns: pa.RecordBatch
    failures: dict[int, str]


class DecodedObjects(NamedTuple):
    """The values of a batch as Python objects, for per-record functions.

    Attributes:
        objects: one for each value, in order; None for a value that failed or is null.
        failures: as in `Decoded`.
    """

    objects: list[Any]
    failures: dict[int, str]


class ValueFormat(metaclass=Checked):
    """How the values, or the keys, of a topic are encoded. Both engines use it; so may your own class.

    It must be picklable: it is sent to the processes that map. So make connections and caches at their first
    use in each process, not in `__init__`. Several threads call `decode` at a time.
    """

    def __repr__(self) -> str:
        """Name it in messages as it was written, as far as it says so."""
        return super().__repr__() if type(self).__str__ is object.__str__ else str(self)

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns of `decode`; always the same."""

    @abstractmethod
    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode the values of one batch.

        Called in the thread or process that maps, never on the event loop: it may block. It should release
        the interpreter lock where it can. A value that cannot be decoded is one of `failures`; it does not
        affect others.

        Args:
            values: the bytes; null where the record has none (a tombstone).

        Raises:
            KmrError: no value can be decoded now or later. The worker ends with the message.
        """

    @property
    def has_schema_ids(self) -> bool:
        """Whether each value begins with the id of its schema (Confluent's wire format)."""
        return False

    def schema_id_of_guid(self, guid: str) -> int:
        """Return the id of the schema with a GUID: producers may put that in a header in place of the id.

        Called where `has_schema_ids`. By default 0, for formats that read all schemas alike.

        Raises:
            UnknownSchema: the registry does not have it.
            RegistryError: the registry does not answer.
        """
        return 0

    @property
    def decodes_singly(self) -> bool:
        """Whether `decode_objects` takes as long for a value alone as for one of many."""
        return False

    @property
    def is_changes(self) -> bool:
        """Whether the rows are changes, with a column `op`: where it is null the value is no change."""
        return False

    def warm_up(self) -> None:
        """Load what the first `decode` would have to load, such as compiled code; by default nothing.

        Called in a thread, before the first batch is fetched. It connects to nothing.
        """

    def decode_objects(self, values: pa.BinaryArray) -> DecodedObjects:
        """Decode the values of one batch to one object each: by default a dict of the columns.

        As `decode` otherwise.
        """
        columns, failures = self.decode(values)
        rows: list[Any] = _objects(columns, failures)
        for row in (*failures, *np.flatnonzero(values.is_null())):
            rows[row] = None
        return DecodedObjects(rows, failures)

    def encode(self, rows: pa.Table, topic: str) -> pa.BinaryArray:
        """Encode rows for a writer.

        Args:
            topic: where they are written; registries derive the name of a schema from it.

        Raises:
            RowsDoNotFit: some rows have values that cannot be encoded.
            StrategyError: the format cannot be written, which is the default, or not these columns.
        """
        raise StrategyError(f"{type(self).__name__} cannot be written: it has no `encode`")


def _objects(columns: pa.RecordBatch, failures: dict[int, str]) -> list[dict[str, Any]]:
    """Return a dict for each row; `failures` gets rows with times that Python does not have."""
    values = []
    for name, column in zip(columns.schema.names, columns.columns, strict=True):
        try:
            values.append(column.to_pylist())
        except (OverflowError, ValueError):
            values.append([])
            for row in range(len(column)):
                try:
                    values[-1].append(column[row].as_py())
                except (OverflowError, ValueError):
                    (text,) = python_values(column.slice(row, 1))
                    failures.setdefault(row, f"field {name}: Python has no object for {text}")
                    values[-1].append(None)
    names = columns.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


MALFORMED: Final = "value: "
"""The beginning of a reason that names no field."""

_AT: Final = re.compile(r"(?P<text>.*) - at `\$(?P<path>.*)`\Z", re.DOTALL)
_AT_KEY: Final = re.compile(r"(?P<text>.*) - at `key` in `\$(?P<path>.*)`\Z", re.DOTALL)
_STEP: Final = re.compile(r"\[\d+\]|\[\.\.\.\]|[^.\[]+")
_GOT: Final = re.compile(r", got `(\w+)`\Z")
_CLASSES: Final = {
    "bool": bool, "int": int, "float": float, "str": str, "bytes": bytes, "array": list, "object": dict,
}  # fmt: skip
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>.*)`\Z", re.DOTALL)
_BAD_UTF8: Final = "Invalid UTF-8 encoded string"


def is_bad_utf8(error: BaseException) -> bool:
    """Return whether a text of a value is not UTF-8: since 0.23 msgspec says it by a DecodeError."""
    is_decoding = isinstance(error, msgspec.DecodeError)
    return isinstance(error, UnicodeDecodeError) or (is_decoding and str(error) == _BAD_UTF8)


def reason_of_value(error: Exception, document: Callable[[], Any] | None = None) -> str:
    """Describe why a value cannot be decoded: `field status: expected int, got str: 'x'`.

    Args:
        document: decodes the whole value without a type, to show the part that does not fit.
    """
    pydantic = getattr(error, "errors", None)
    if callable(pydantic):
        with suppress(Exception):  # of another library's class
            first = pydantic(include_url=False, include_context=False, include_input=False)[0]
            return storable(_of_field(".".join(map(str, first["loc"])), first["msg"]))
    if not (isinstance(error, msgspec.MsgspecError | UnicodeDecodeError) or _is_deep(error)):
        return f"{MALFORMED}{reason_of(error)}"
    text, path = storable(str(error)), ""
    if (at := _AT.match(text)) is not None:
        text, path = at["text"], at["path"].lstrip(".")
    elif (key := _AT_KEY.match(text)) is not None:
        text, path = key["text"], f"{key['path'].lstrip('.')} (a key)".strip()
    if (missing := _MISSING.match(text)) is not None:
        path, text = f"{path}.{missing['name']}".lstrip("."), "missing, and it has no default"
    elif at is not None and document is not None:
        text += _shown(document, path, text)
    if is_bad_utf8(error):
        text = "invalid UTF-8"
    return _of_field(path, text)


def _shown(document: Callable[[], Any], path: str, text: str) -> str:
    """Return the value at a path, to end a reason with; empty if it is not known which one is meant."""
    try:
        values = [document()]
    except Exception:  # noqa: BLE001  the document cannot be decoded as a whole
        return ""
    for step in _STEP.findall(path):
        values = [each for value in values for each in _inside(value, step)]
    if (got := _GOT.search(text)) is not None:
        values = [each for each in values if type(each) is _CLASSES.get(got[1])]
    if len(values) != 1 or values[0] is None:
        return ""
    shown = excerpt(values[0])
    return "" if shown in text else f": {shown}"


def _inside(value: Any, step: str) -> list[Any]:
    if step == "[...]":
        return list(value.values()) if isinstance(value, dict) else []
    if step.startswith("["):
        at = int(step[1:-1])
        return value[at : at + 1] if isinstance(value, list) else []
    return [value[step]] if isinstance(value, dict) and step in value else []


def _is_deep(error: Exception) -> bool:
    """Return whether a value is nested too deeply: the decoder's message says so."""
    return isinstance(error, RecursionError) and bool(error.args)


def _of_field(path: str, text: str) -> str:
    text = text.replace("`", "")
    text = text[:1].lower() + text[1:] if not text[:2].isupper() else text
    return f"field {path}: {text}" if path else f"{MALFORMED}{text}"


def require_format(what: str, value: object) -> None:
    """Raise StrategyError unless a value is a format; `what` names the argument."""
    if isinstance(value, ValueFormat):
        return
    example = "Json(...)"
    if isinstance(value, type):
        is_format = issubclass(value, ValueFormat)
        example = f"{value.__name__}(...)" if is_format else f"Json({value.__name__})"
        value = f"the class {value.__name__}"
    raise StrategyError(
        f"{what} is {value!s}, which is not a format: pass {example}, or an object of a class that extends "
        "ValueFormat"
    )
