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

from ..mapping.branching import join, only_branch
from ..mapping.calls import rate_limit_of
from ..mapping.functions import MARK, MapSpec, apply, apply_async
from ..mapping.resources import accepted
from ..mapping.results import NO_OFFSETS, Failure, MapResult
from ..mapping.stop import Stop
from ..record import COORDINATES
from ..service.threads import run_in_thread
from ..strategy import Strategy
from .letters import NOT_STORED, STAGE, header_columns, original_records

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True)
class Replay(Strategy):
    """A strategy on letters. Its `reduce_err` may write to the topic that is read: the pass has an end."""

    def refuse_loop(self, topics: Container[str], bootstrap_servers: str) -> None:
        without = Strategy(map=self.map, reduce=self.reduce, delivery=self.delivery)
        without.refuse_loop(topics, bootstrap_servers)


def replay_of(
    strategy: Strategy, chosen: Mapping[int, NDArray[np.int64]], rate: float | None = None
) -> Replay:
    """Return a strategy that applies `strategy` to the records of the chosen letters.

    Args:
        chosen: the offsets of letters, ascending, by partition of their topic. Others are filtered.
        rate: the most letters in a second, in this process; each batch waits for its turn as a whole.
    """
    is_async = any(part.map_spec.is_async for part in strategy.parts)
    kind = _AsyncLetterMap if is_async else _LetterMap
    same = {each.name: getattr(strategy, each.name) for each in fields(strategy) if each.init}
    changed = {
        "map": kind(strategy, chosen, rate),
        "value": None,  # the user's map decodes the records' values, not the letters'
        "key": None,
        "by_topic": None,
    }
    return Replay(**same | changed)


@dataclass(frozen=True, slots=True)
class _PartitionRecords:
    """Records of one topic partition with ascending offsets, and the offsets of their letters.

    Attributes:
        branch: the branch that refused rows of the records, which alone gets them again; empty if the map
            failed, or there are no branches.
    """

    records: pa.RecordBatch
    offsets: NDArray[np.int64]
    letters: NDArray[np.int64]
    branch: str

    def of_letters(self, mapped: MapResult) -> MapResult:
        """Return a result that names letters instead of their records."""
        failures = tuple(
            failure._replace(offset=self._letter(failure.offset)) for failure in mapped.failures
        )
        rest = None
        if mapped.rest is not None:
            rest = int(self.letters[self.offsets >= mapped.rest].min())
        if self.branch:
            mapped = only_branch(mapped, self.branch)
        rows = np.searchsorted(self.offsets, mapped.offsets)
        records = pa.Table.from_batches([self.records.select(COORDINATES.names)])
        return replace(
            mapped,
            offsets=self.letters[rows],
            failures=failures,
            rest=rest,
            places=records.take(rows),
        )

    def _letter(self, offset: int) -> int:
        return int(self.letters[np.searchsorted(self.offsets, offset)])


class _LetterMap:
    """A map of letters, made of a strategy's map of records.

    Args:
        rate: the most letters in a second; None: any number.
    """

    _is_async = False

    def __init__(
        self,
        strategy: Strategy,
        chosen: Mapping[int, NDArray[np.int64]],
        rate: float | None,
    ) -> None:
        self._strategy = strategy
        self._chosen = chosen
        self._rate = rate
        setattr(self, MARK, MapSpec("result", self._is_async))

    def __call__(self, letters: pa.RecordBatch, stop: Stop | None, **resources: Any) -> Any:
        """Return the `MapResult` of the letters that are chosen."""
        stop = stop or Stop()
        letters, *mapped = self._choose(letters)
        stop.sleep(self._turn(letters))
        for part in _parts(letters):
            function, spec = self._map_of(part, resources)
            mapped.append(part.of_letters(apply(function, part.records, spec, stop.part())))
        return _joined(mapped)

    def _turn(self, letters: pa.RecordBatch) -> float:
        """Return the seconds to wait before letters are mapped."""
        return 0.0 if self._rate is None else rate_limit_of(self._rate).reserve(len(letters))

    def _choose(self, letters: pa.RecordBatch) -> tuple[pa.RecordBatch, *tuple[MapResult, ...]]:
        """Return the chosen letters, and the failures of those that lack a part of their record."""
        if not len(letters):
            return (letters,)
        chosen = self._chosen.get(letters.column("partition")[0].as_py(), NO_OFFSETS)
        letters = letters.filter(pa.array(np.isin(letters.column("offset").to_numpy(), chosen)))
        missing = header_columns(letters, (NOT_STORED,))[NOT_STORED]
        if missing.null_count == len(letters):
            return (letters,)
        at: list[int] = letters.column("offset").to_numpy().tolist()
        failures = [
            Failure(offset, f"the letter lacks the {text.decode(errors='replace')} of its record")
            for offset, text in zip(at, missing.to_pylist(), strict=True)
            if text is not None
        ]
        whole = letters.filter(missing.is_null())
        return whole, MapResult(None, NO_OFFSETS, tuple(failures))

    def _map_of(self, part: _PartitionRecords, resources: dict[str, Any]) -> tuple[Any, MapSpec]:
        """Return the map of the records' topic."""
        strategy = self._strategy.of_topic(part.records.column("topic")[0].as_py())
        function = strategy.map
        if resources and function is not None:
            function = partial(function, **accepted(function, resources))
        return function, strategy.map_spec


class _AsyncLetterMap(_LetterMap):
    _is_async = True

    async def __call__(
        self, letters: pa.RecordBatch, stop: Stop | None, **resources: Any
    ) -> MapResult:
        stop = stop or Stop()
        letters, *mapped = self._choose(letters)
        await stop.sleep_async(self._turn(letters))
        for part in _parts(letters):
            function, spec = self._map_of(part, resources)
            if spec.is_async:
                result = await apply_async(function, part.records, spec, stop.part())
            else:
                result = await run_in_thread(
                    partial(apply, function, part.records, spec, stop.part())
                )
            mapped.append(part.of_letters(result))
        return _joined(mapped)


def _parts(letters: pa.RecordBatch) -> Iterator[_PartitionRecords]:
    if not len(letters):
        return
    records = original_records(letters)
    topics = records.column("topic").dictionary_encode().indices.to_numpy()
    partitions = records.column("partition").to_numpy()
    offsets = records.column("offset").to_numpy()
    at = letters.column("offset").to_numpy()
    names, branches = _branches(letters)
    left = np.arange(len(records))
    while len(left):
        # Of several letters of one record, each is a part of its own.
        place = np.stack([topics[left], partitions[left], branches[left], offsets[left]])
        _, firsts = np.unique(place, axis=1, return_index=True)
        round_ = left[firsts]
        changes = [np.diff(each[round_]) != 0 for each in (topics, partitions, branches)]
        for rows in np.split(round_, np.flatnonzero(np.any(changes, axis=0)) + 1):
            yield _PartitionRecords(
                records.take(rows), offsets[rows], at[rows], names[branches[rows[0]]]
            )
        left = np.setdiff1d(left, round_, assume_unique=True)


def _branches(letters: pa.RecordBatch) -> tuple[list[str], NDArray[np.int64]]:
    """Return the names of branches, and for each letter the number of the branch that refused its rows."""
    stages = header_columns(letters, (STAGE,))[STAGE].cast(pa.string()).dictionary_encode()
    names = ["", *(str(stage).partition(" ")[2] for stage in stages.dictionary.to_pylist())]
    return names, stages.indices.fill_null(-1).to_numpy().astype(np.int64) + 1


def _joined(parts: Sequence[MapResult]) -> MapResult:
    """Join the results of parts; of a map that was stopped, those before the first letter that is left."""
    mapped = join(parts)
    places = mapped.places
    if mapped.table is not None and places is not None:
        order = np.argsort(mapped.offsets, kind="stable")
        table, places = mapped.table.take(order), places.take(order)
        mapped = replace(mapped, table=table, offsets=mapped.offsets[order], places=places)
    left = [part.rest for part in parts if part.rest is not None]
    if not left:
        return mapped
    rest = min(left)
    done = int(np.searchsorted(mapped.offsets, rest))
    kept = None if mapped.table is None or not done else mapped.table.slice(0, done)
    return replace(
        mapped,
        table=kept,
        offsets=mapped.offsets[:done],
        failures=tuple(failure for failure in mapped.failures if failure.offset < rest),
        rest=rest,
        places=None if places is None else places.slice(0, done),
    )
