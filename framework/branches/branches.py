"""The composite of several branches: one range, one announcement, a write by each branch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from ..errors import SinkUnavailable, StrategyError, TableRefused, reason_of
from ..memory.distinct import Distinct
from ..memory.window import Window
from ..record import of_records
from ..reducers.aggregate import Aggregate
from ..reducers.collect import Batcher, Collecting
from ..reducers.reducer import Limits, Reducer, Retry, close_all
from ..reducers.sink import NEW, Capabilities, Refusal, RowsRefused, Sink, capabilities_of
from ..tagged_rows import branches, is_tagged, schemas
from .branch import Branch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from ..kafka.transactions import Transactions
    from ..record import Rows
    from ..reducers.finding import Finding
    from ..reducers.reducer import Context
    from ..reducers.sink import Write


class Other:
    """The type of `OTHER`."""

    def __str__(self) -> str:
        return "other"

    def __repr__(self) -> str:
        return "OTHER"


OTHER: Final = Other()
"""The key in `reduce=` of the branch for all rows whose type or name has no branch."""


@dataclass(frozen=True, slots=True)
class PerName:
    """Makes branches for names that are not known before; see `per_name`."""

    make: Callable[[str], Reducer | Sequence[Reducer]]
    at_most: int
    example: str

    def chain(self, name: str) -> tuple[Reducer, ...]:
        """Return the reducers of a new branch. Raises StrategyError if `make` raises, or makes no chain."""
        try:
            made = self.make(name)
        except StrategyError:
            raise
        except Exception as error:
            raise StrategyError(f"per_name: make({name!r}) raised {reason_of(error)}") from error
        return as_chain(made, f"per_name: the branch {name}")


def per_name(
    make: Callable[[str], Reducer | Sequence[Reducer]], *, at_most: int, example: str = "example"
) -> PerName:
    """Make a branch for each name that a row is tagged with, when the first row of the name is written.

    Example:
        ```python
        from kmr import Strategy, map_record, per_name
        from kmr.sinks import ClickHouseWriter

        @map_record
        def by_tenant(record):
            return {"size": len(record.value)}, record.key.decode()

        strategy = Strategy(
            map=by_tenant,
            reduce=per_name(lambda name: ClickHouseWriter(f"events_{name}", create=True), at_most=500),
        )
        ```

    Args:
        make: returns the reducer, or the chain of reducers, of a name of 1 to 100 printable characters;
            records with other names fail. All branches must have the same guarantee. Where it raises, or
            the branch does not fit its sink, the record fails.
        at_most: how many branches there may be; records of further names fail.
        example: a name with which `make` is called once, to know the guarantee before the first record.

    Raises:
        StrategyError: `make` is no function, or `at_most` is no number from 1 on.
    """
    if not callable(make):
        raise StrategyError(f"per_name: make must be a function of a name, not {make!r}")
    if not isinstance(at_most, int) or at_most < 1:  # type: ignore[redundant-expr]
        raise StrategyError(f"per_name: at_most must be a number from 1 on, not {at_most!r}")
    return PerName(make, at_most, example)


def _example_of(others: PerName) -> tuple[Reducer, ...]:
    try:
        return others.chain(others.example)
    except StrategyError as error:
        raise StrategyError(
            f"{error}; it is called with example= once, to know the guarantee: give a name that it takes"
        ) from error


class Pending(NamedTuple):
    """The part of a flush that a branch has not written yet; `reason`: why the last attempt failed."""

    rows: int
    bytes: int
    reason: str | None = None


class Branches(Collecting, Sink):
    """Divides rows by the names that they are tagged with, and gives each branch its part of a flush.

    Branches write at the same time. One that fails is tried again without the others, so a flush ends when
    all have written: a branch that is down holds the partition. The limits are the lowest ones of the
    branches, and count the rows of all.

    Args:
        chains: the reducers of each branch, by its name.
        others: makes branches for names that are not in `chains`; None: rows of another name are refused.

    Attributes:
        counts: rows and bytes of each branch in the last flush that ended.
        pending: the branches that have not written their part of the present flush.

    Raises:
        StrategyError: the branches cannot be together.
    """

    def __init__(
        self, chains: Mapping[str, Sequence[Reducer]], others: PerName | None = None
    ) -> None:
        self._branches: dict[str, Branch] = {}
        for name, reducers in chains.items():
            branch = Branch(name, reducers)
            self._require_own_table(branch)
            self._branches[name] = branch
        self._others = others
        self._example = () if others is None else _example_of(others)
        super().__init__(**_limits([reducers[0] for reducers in self._chains().values()]))
        self.capabilities = _weakest(self._chains())
        self.counts: dict[str, tuple[int, int]] = {}
        self.pending: dict[str, Pending] = {}
        self._context: Context | None = None
        self._opened: Branches | None = None
        self._making: anyio.Lock | None = None
        self._delivered: dict[str, list[Rows]] = {}
        self._failed: list[Rows] = []
        self._sizes: dict[str, tuple[int, int]] = {}

    @property
    def chains(self) -> dict[str, Sequence[Reducer]]:
        """The reducers of each branch that is known, by its name."""
        return {name: branch.reducers for name, branch in self._branches.items()}

    def _chains(self) -> dict[str, Sequence[Reducer]]:
        return self.chains | ({f"<{OTHER}>": self._example} if self._example else {})

    async def open(self, context: Context) -> None:
        self._context = context
        self._making = anyio.Lock()
        opened = context.for_sinks.opened
        self._opened = opened if isinstance(opened, Branches) else None
        known = _known(context)
        for name, branch in self._branches.items():
            await branch.open(context, known.get(name), self._master(name))
        self.capabilities = _weakest(self._chains())

    def _master(self, name: str) -> Branch | None:
        return None if self._opened is None else self._opened._branches.get(name)  # noqa: SLF001

    async def close(self) -> None:
        await close_all(branch.close for branch in self._branches.values())

    def reset(self) -> None:
        super().reset()
        self.pending = {}
        for branch in self._branches.values():
            branch.reset()

    async def flush(self, write: Write = NEW) -> None:
        """Let each branch write its part of the rows.

        Raises:
            RowsRefused: some branches refuse rows for good; the others are delivered.
            Retry: some branches could not write; the next call is for them.
            UnexpectedDuplicate: a branch has rows that were never announced.
        """
        if self.capabilities.commits_offsets:  # what was sent in a transaction before is aborted
            self._forget()
        refusals: list[Refusal] = []
        errors: list[Exception] = []
        parts = self._divide()
        self.pending = {
            name: Pending(*_size(rows), self.pending[name].reason if name in self.pending else None)
            for name, rows in parts.items()
        }

        async def deliver(name: str, rows: Sequence[Rows]) -> None:
            try:
                branch = await self._branch(name, rows[0].table.schema)
                self._failed += await branch.deliver(rows, write)
                self._delivered.setdefault(name, []).extend(self.rows)
                done = self.pending.pop(name)
                self._sizes[name] = done.rows, done.bytes
            except _NoBranch as unknown:
                refusals.extend(Refusal(each, str(unknown)) for each in rows)
                del self.pending[name]
            except Exception as error:  # noqa: BLE001  the other branches continue
                reason = error.reason if isinstance(error, Retry) else reason_of(error)
                self.pending[name] = self.pending[name]._replace(reason=reason)
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            for name, rows in parts.items():
                tasks.start_soon(deliver, name, rows)
        if errors:
            raise min(errors, key=lambda error: isinstance(error, Retry))
        failed, self.counts = self._failed, self._sizes
        self._forget()
        if failed or refusals:
            raise RowsRefused(refusals, failed)

    def _forget(self) -> None:
        self._failed, self._delivered, self._sizes = [], {}, {}
        for branch in self._branches.values():
            branch.reset()

    def _divide(self) -> dict[str, list[Rows]]:
        """Return the rows of each branch that are not delivered yet.

        When a partition is lost between two attempts, the engine adds the rows of the others again: those
        that a branch has written are recognised, because they are the same objects.
        """
        parts: dict[str, list[Rows]] = {}
        for rows in self.rows:
            for name, table, places in branches(rows.table):
                if not any(rows is each for each in self._delivered.get(name, ())):
                    offsets = None if rows.offsets is None else rows.offsets[places]
                    of = None if rows.places is None else rows.places.take(places)
                    mine = replace(rows, table=table, offsets=offsets, places=of)
                    parts.setdefault(name, []).append(mine)
        return parts

    async def _branch(self, name: str, schema: pa.Schema) -> Branch:
        """Return the branch of a name, open. Raises _NoBranch if there is none, and none can be made.

        Args:
            schema: the columns of its first rows, for a branch that is made.
        """
        if name in self._branches:
            return self._branches[name]
        if self._others is None or self._context is None or self._making is None:
            raise _NoBranch(f"there is no branch {name}; add it to reduce=, or add OTHER")
        if self._opened is not None:
            await self._opened._branch(name, schema)  # noqa: SLF001  its connection is shared
        async with self._making:
            if name in self._branches:
                return self._branches[name]
            if len(self._branches) >= self._others.at_most:
                raise _NoBranch(
                    f"branch {name}: there are {self._others.at_most} branches already; raise at_most="
                )
            try:
                branch = Branch(name, self._others.chain(name))
                self._require_guarantee(branch)
                self._require_own_table(branch)
                await branch.open(self._context, of_records(schema), self._master(name))
            except (StrategyError, TableRefused) as error:
                text = str(error).removeprefix(f"branch {name}: ")
                raise _NoBranch(f"branch {name}: {text}") from error
            except SinkUnavailable as error:
                raise Retry(f"branch {name}: {error}", may_double=False) from error
            self._branches[name] = branch
            return branch

    def _require_guarantee(self, branch: Branch) -> None:
        own = _weakest({branch.name: branch.reducers}).delivery
        if own != self.capabilities.delivery and self.capabilities.delivery == "exactly-once":
            raise StrategyError(f"it is {own}, the others are exactly-once; make all alike")

    def _require_own_table(self, branch: Branch) -> None:
        """Check that neither its reducers nor a count in its table have rows of another branch."""
        for other in self._branches.values():
            if any(mine is its for mine in branch.reducers for its in other.reducers):
                raise StrategyError(
                    f"branches {other.name} and {branch.name} have one reducer object; make one for each"
                )
            if _counts_in(other) is not None and _counts_in(other) == _counts_in(branch):
                raise StrategyError(
                    f"branches {other.name} and {branch.name} write to one table, whose counts could not "
                    "tell their rows apart; give it one branch: a common base class as the key, or one name"
                )

    async def examine(self, context: Context) -> Sequence[Finding]:
        known = _known(context)
        found: list[Finding] = []
        for name, branch in self._branches.items():
            found += await branch.examine(context, known.get(name))
        return found

    def topic_written(self, bootstrap_servers: str) -> str | None:
        lasts = [branch.reducers[-1] for branch in self._branches.values()]
        topics = (last.topic_written(bootstrap_servers) for last in lasts if isinstance(last, Sink))
        return next(filter(None, topics), None)

    def transactions(self, context: Context) -> Transactions:
        first = next(iter(self._chains().values()))[-1]
        assert isinstance(first, Sink)  # noqa: S101  it commits offsets
        return first.transactions(context)

    def __str__(self) -> str:
        return f"branches {', '.join(self._chains())}"


def _counts_in(branch: Branch) -> tuple[str, ...] | None:
    last = branch.reducers[-1]
    if not isinstance(last, Sink) or last.capabilities.delivery != "exactly-once":
        return None
    return last.counts_in


class _NoBranch(Exception):
    """Rows are tagged with the name of no branch."""


def with_distinct(given: object, what: str) -> tuple[Distinct | None, tuple[Reducer, ...]]:
    """Return the `Distinct` before a reducer, or before several, and the others as a chain.

    Raises StrategyError, which begins with `what`.
    """
    first = given[0] if isinstance(given, list | tuple) and given else given
    if not isinstance(first, Distinct):
        return None, as_chain(given, what)
    others = given[1:] if isinstance(given, list | tuple) else []
    if not others:
        raise StrategyError(f"{what}: Distinct only drops rows; put a reducer after it")
    return first, as_chain(others, what)


def as_chain(given: object, what: str) -> tuple[Reducer, ...]:
    """Return a reducer, or several, as a chain. Raises StrategyError, which begins with `what`."""
    chain = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not chain:
        raise StrategyError(f"{what} is empty: a strategy needs at least one reducer")
    if any(isinstance(each, Distinct) for each in chain):
        raise StrategyError(
            f"{what}: Distinct must be the first of reduce=, or of a branch with a name, and only there: it "
            "needs to know the record of each row"
        )
    for reducer in chain:
        if isinstance(reducer, Mapping):
            raise StrategyError(
                f"{what}: branches cannot follow a reducer: give the mapping alone, and put reducers into "
                "the list of each branch"
            )
        if not isinstance(reducer, Reducer):
            raise StrategyError(f"{what}: {_shown(reducer)}")
    for reducer in chain[:-1]:
        if not capabilities_of(reducer).forwards:
            raise StrategyError(
                f"{what}: {type(reducer).__name__} writes, so it must be the last of its chain; "
                "give each writer a branch of its own"
            )
    if type(chain[-1]) in (Aggregate, Batcher, Window):
        raise StrategyError(
            f"{what}: {type(chain[-1]).__name__} is the last and writes nothing, so its rows would be lost; "
            "put a writer of kmr.sinks after it, or Collect(function)"
        )
    return chain


def _known(context: Context) -> dict[str, pa.Schema]:
    """Return the columns of the branches, as far as they are declared."""
    schema = context.for_sinks.schema_of(context.stage)
    if schema is None or not is_tagged(schema):
        return {}
    return {name: each.with_metadata(schema.metadata) for name, each in schemas(schema).items()}


def _size(rows: Sequence[Rows]) -> tuple[int, int]:
    return sum(map(len, rows)), sum(each.nbytes for each in rows)


def _limits(first: Sequence[Reducer]) -> Limits:
    """Return the lowest limits of the first reducers of all branches, and their common policies."""

    def lowest(name: str) -> float | None:
        return min((v for each in first if (v := getattr(each, name)) is not None), default=None)

    for policy in ("when_full", "on_shutdown"):
        if len(chosen := {getattr(reducer, policy) for reducer in first}) > 1:
            raise StrategyError(
                f"reduce=: branches are flushed together, but their {policy} differs ({sorted(chosen)}); "
                "set the same in all"
            )
    rows, nbytes = lowest("max_rows"), lowest("max_bytes")
    return Limits(
        max_rows=None if rows is None else int(rows),
        max_bytes=None if nbytes is None else int(nbytes),
        max_age=lowest("max_age"),
        when_full=first[0].when_full,
        on_shutdown=first[0].on_shutdown,
    )


def _weakest(chains: Mapping[str, Sequence[Reducer]]) -> Capabilities:
    """Return what all branches can do together: the guarantee is the weakest one.

    Raises:
        StrategyError: a branch commits offsets in its transactions, and another one does not.
    """
    of = {name: capabilities_of(reducers[-1]) for name, reducers in chains.items()}
    committing = [name for name, each in of.items() if each.commits_offsets]
    if committing and len(committing) < len(of):
        other = next(name for name in of if name not in committing)
        raise StrategyError(
            f"reduce=: branch {committing[0]} commits offsets in a transaction, and branch {other} cannot "
            "be a part of it; write to topics with delivery='at-least-once', or in a strategy of their own"
        )
    rates = [each.flushes_per_second for each in of.values() if each.flushes_per_second is not None]
    exactly = all(each.delivery == "exactly-once" for each in of.values())
    return Capabilities(
        delivery="exactly-once" if exactly else "at-least-once",
        names_ranges=all(each.names_ranges for each in of.values()),
        commits_offsets=bool(committing),
        block_rows=min(each.block_rows for each in of.values()),
        flushes_per_second=min(rates, default=None),
        needs_session=any(each.needs_session for each in of.values()),
        on_spark="; ".join(f"{name}: {each.on_spark}" for name, each in of.items()),
        errors_on_spark="; ".join(f"{name}: {each.errors_on_spark}" for name, each in of.items()),
        difference_on_spark="; ".join(
            f"{name}: {each.difference_on_spark}"
            for name, each in of.items()
            if each.difference_on_spark
        ),
    )


def _shown(value: object) -> str:
    """Return why a value is not a reducer, and what to write instead."""
    if isinstance(value, type) and issubclass(value, Reducer):
        return f"{value.__name__} is a class: pass an object of it, {value.__name__}(...)"
    if callable(value):
        name = getattr(value, "__name__", repr(value))
        return f"the function {name} is not a reducer: pass Collect({name})"
    return f"{value!r} is not a reducer: pass an object of a class that extends Reducer"
