"""`Distinct`: drops rows whose key was seen before, within a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from ..arguments import Checked
from ..config.schema import Duration, parse_duration
from ..errors import StrategyError, require_columns
from .distinct_keys import is_comparable
from .event_time import require_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

OnDuplicate = Literal["drop", "dead-letter"]

STAGE: Final = "distinct"
"""The stage of dead letters that are duplicates."""

_MICROSECONDS: Final = 1_000_000
_LONGEST: Final = 10 * 365 * 86_400


class Distinct(metaclass=Checked):
    """Drops each row whose key was seen before in its partition, within a time; the first one passes.

    It stands first in `reduce=[...]`, or first in the list of a branch. A row is a duplicate if a row with
    the same key came before it in the partition, and the event time of the partition went on by less than
    `within` since the last of these. The event time of a partition is the highest time of its rows so far.
    So what is a duplicate follows from the log alone: a worker that starts reads the last `within` again,
    before its first new record, and decides as the one before.

    A row with a null in its key always passes: nothing says that it equals another one.

    Example:
        ```python
        import msgspec

        from kmr import Distinct, Json, Strategy
        from kmr.sinks import ClickHouseWriter

        class Event(msgspec.Struct):
            event_id: str
            amount: int

        strategy = Strategy(
            value=Json(Event),
            reduce=[Distinct(key="event_id", within="10m"), ClickHouseWriter("events")],
        )
        ```

    Args:
        key: the column, or the columns, whose values together are the key: text, bytes, whole numbers,
            booleans, dates or times.
        within: how long a key is remembered, in seconds or with a unit: `"10m"`. Each row with the key,
            also one that is dropped, begins it anew.
        time: the column of the rows' times, a timestamp; a null does not move the event time. None: the
            timestamps of the records.
        ahead: a time that is so much later than the record's timestamp moves nothing: everything before it
            would be forgotten. A record without a timestamp is not checked. None: any time counts.
        on_duplicate: `drop` duplicates, or send records whose rows are all duplicates to `reduce_err`, with
            the stage `distinct` (`dead-letter`); they do not count for `err_limit`. Both are counted.

    Raises:
        StrategyError: an argument is not allowed.
    """

    def __init__(
        self,
        key: str | Sequence[str],
        within: Duration,
        *,
        time: str | None = None,
        ahead: Duration | None = "1d",
        on_duplicate: OnDuplicate = "drop",
    ) -> None:
        self.key: tuple[str, ...] = (key,) if isinstance(key, str) else tuple(key)
        if not self.key or "" in self.key:
            raise StrategyError(
                f"Distinct: key must be the name of a column, or several, not {key!r}"
            )
        self.within = _seconds("within", within)
        self.ahead = None if ahead is None else round(_seconds("ahead", ahead) * _MICROSECONDS)
        self.time = time
        self.on_duplicate = on_duplicate

    @property
    def microseconds(self) -> int:
        """`within` in microseconds."""
        return round(self.within * _MICROSECONDS)

    def require(self, schema: pa.Schema) -> None:
        """Raise StrategyError unless rows of these columns have a key and a time."""
        wanted = self.key if self.time is None else (*self.key, self.time)
        require_columns("Distinct", wanted, schema.names)
        for name in self.key:
            if not is_comparable(kind := schema.field(name).type):
                raise StrategyError(
                    f"Distinct: column {name!r} is {kind}, whose values are no key; make it text, bytes, a "
                    "whole number or a time in the map"
                )
        if self.time is not None:
            require_time("Distinct", self.time, schema.field(self.time).type)

    def __str__(self) -> str:
        """The rule in words, for `kmr validate`."""
        return f"one row per {', '.join(self.key)} within {self.within:g} s"


def _seconds(name: str, given: Duration) -> float:
    seconds = parse_duration(given, f"Distinct: {name}={given!r}")
    if not 0.001 <= seconds < _LONGEST:
        raise StrategyError(
            f"Distinct: {name} must be at least 1 ms and less than ten years, not {given!r}"
        )
    return seconds
