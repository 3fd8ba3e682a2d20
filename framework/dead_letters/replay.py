"""A strategy that replays letters: the user's map gets the original records, the sinks get its rows.

It is run like any strategy, on the topic of letters and with a consumer group of its own: what it
guarantees, and where it begins again after a crash, is the work of the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..mapping.functions import MARK, MapSpec, apply, apply_async
from ..mapping.results import NO_OFFSETS, MapResult, join
from ..strategy import Strategy
from .letters import original_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

__all__ = ["Replay", "replay_of"]


@dataclass(frozen=True)
class Replay(Strategy):
    """A strategy on letters. Its `reduce_err` may write to the topic that is read: the pass has an end."""

    def refuse_loop(self, topics: Iterable[str], bootstrap_servers: str) -> None:
        without = Strategy(map=self.map, reduce=self.reduce, delivery=self.delivery)
        without.refuse_loop(topics, bootstrap_servers)


def replay_of(strategy: Strategy, chosen: Mapping[int, NDArray[np.int64]]) -> Replay:
    """Return a strategy that applies `strategy` to the records of the chosen letters.

    Args:
        chosen: the offsets of letters, ascending, by partition of their topic. Others are filtered.
    """
    kind = _AsyncLetterMap if strategy.map_spec.is_async else _LetterMap
    same = {each.name: getattr(strategy, each.name) for each in fields(strategy) if each.init}
    changed = {
        "map": kind(strategy.map, strategy.map_spec, chosen),
        "value": None,  # the user's map decodes the records' values, not the letters'
        "key": None,
    }
    return Replay(**same | changed)


@dataclass(frozen=True, slots=True)
class _Part:
    """Records of one topic partition with ascending offsets, and the offsets of their letters."""

    records: pa.RecordBatch
    offsets: NDArray[np.int64]
    letters: NDArray[np.int64]

    def of_letters(self, mapped: MapResult) -> MapResult:
        """Return a result that names letters instead of their records."""
        failures = tuple(
            failure._replace(offset=int(self._letter(failure.offset)))
            for failure in mapped.failures
        )
        return replace(mapped, offsets=self._letter(mapped.offsets), failures=failures)

    def _letter(self, offsets: Any) -> Any:
        return self.letters[np.searchsorted(self.offsets, offsets)]


class _LetterMap:
    """A per-batch map of letters, made of a map of records."""

    def __init__(
        self,
        function: Any,
        spec: MapSpec,
        chosen: Mapping[int, NDArray[np.int64]],
    ) -> None:
        self._function = function
        self._spec = spec
        self._chosen = chosen
        setattr(self, MARK, MapSpec("batch", spec.is_async))

    def __call__(self, letters: pa.RecordBatch, **resources: Any) -> Any:
        """Return the `MapResult` of the letters that are chosen."""
        function = self._bound(resources)
        return _joined(
            part.of_letters(apply(function, part.records, self._spec))
            for part in self._parts(letters)
        )

    def _bound(self, resources: dict[str, Any]) -> Any:
        return partial(self._function, **resources) if resources else self._function

    def _parts(self, letters: pa.RecordBatch) -> Iterator[_Part]:
        if not len(letters):
            return
        chosen = self._chosen.get(letters.column("partition")[0].as_py(), NO_OFFSETS)
        letters = letters.filter(pa.array(np.isin(letters.column("offset").to_numpy(), chosen)))
        records = original_records(letters)
        topics = records.column("topic").dictionary_encode().indices.to_numpy()
        partitions = records.column("partition").to_numpy()
        offsets = records.column("offset").to_numpy()
        at = letters.column("offset").to_numpy()
        left = np.arange(len(records))
        while len(left):
            # Of several letters of one record, each is a part of its own.
            place = np.stack([topics[left], partitions[left], offsets[left]])
            _, firsts = np.unique(place, axis=1, return_index=True)
            round_ = left[firsts]
            borders = np.flatnonzero(
                (np.diff(topics[round_]) != 0) | (np.diff(partitions[round_]) != 0)
            )
            for rows in np.split(round_, borders + 1):
                yield _Part(records.take(rows), offsets[rows], at[rows])
            left = np.setdiff1d(left, round_, assume_unique=True)


class _AsyncLetterMap(_LetterMap):
    async def __call__(self, letters: pa.RecordBatch, **resources: Any) -> MapResult:
        parts = list(self._parts(letters))
        function = self._bound(resources)
        mapped = [await apply_async(function, part.records, self._spec) for part in parts]
        return _joined(part.of_letters(each) for part, each in zip(parts, mapped, strict=True))


def _joined(parts: Iterable[MapResult]) -> MapResult:
    mapped = join(list(parts))
    if mapped.table is None:
        return mapped
    order = np.argsort(mapped.offsets, kind="stable")
    return replace(mapped, table=mapped.table.take(order), offsets=mapped.offsets[order])
