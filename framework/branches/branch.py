"""One branch: a chain of reducers that takes its part of a flush, one attempt after the other."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from ..errors import StrategyError
from ..reducers.buffer import Buffer
from ..reducers.flushing import MistakeRetry, attempt_flush
from ..reducers.reducer import Retry, close_all
from ..reducers.sink import NEW, Sink, opens

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from ..record import Rows
    from ..reducers.finding import Finding
    from ..reducers.reducer import Context, Reducer
    from ..reducers.sink import Write


class Branch:
    """A chain of reducers under a name, which is a part of its stage, its tokens and its file names.

    Args:
        reducers: at least one; the output of each is the input of the next.
    """

    def __init__(self, name: str, reducers: Sequence[Reducer]) -> None:
        self.name = name
        self.reducers = tuple(reducers)
        self._buffers = [Buffer(reducer) for reducer in reducers]
        self._stage = name
        self._next = 0
        self._attempts = 0
        self._failed: list[Rows] = []

    async def open(
        self, context: Context, schema: pa.Schema | None, opened: Branch | None = None
    ) -> None:
        """Connect the reducers.

        Args:
            context: of the composite.
            schema: the columns of the branch's rows; None if they are not known.
            opened: a copy of the branch that is open already.

        Raises:
            StrategyError: the branch does not fit its sink; the message names the branch.
        """
        self._stage = f"{context.stage} {self.name}"
        masters = (None,) * len(self.reducers) if opened is None else opened.reducers
        contexts = self._contexts(context, schema)
        for reducer, own, master in zip(self.reducers, contexts, masters, strict=True):
            try:
                await reducer.open(own.with_sinks(opened=master))
            except StrategyError as error:
                raise StrategyError(f"branch {self.name}: {error}") from error

    def _contexts(self, context: Context, schema: pa.Schema | None) -> Iterator[Context]:
        group, stage = f"{context.group}+{self.name}", f"{context.stage} {self.name}"
        own = replace(context, group=group, stage=stage)
        for reducer in self.reducers:
            yield own.with_sinks(schema_of=partial(_known, schema))
            schema = schema if reducer.keeps_rows else None

    async def examine(self, context: Context, schema: pa.Schema | None) -> list[Finding]:
        """Check for `kmr doctor` that a worker can open and write; called on a copy that is not opened."""
        found: list[Finding] = []
        for reducer, own in zip(self.reducers, self._contexts(context, schema), strict=True):
            if isinstance(reducer, Sink):
                found += await reducer.examine(own)
            else:
                found.append(await opens(reducer, own))
        return found

    async def close(self) -> None:
        """Disconnect the reducers, also after a failure."""
        await close_all(reducer.close for reducer in self.reducers)

    async def deliver(self, rows: Sequence[Rows], write: Write) -> Sequence[Rows]:
        """Take rows through the chain. After an error, the next call goes on where this one ended.

        Args:
            rows: the same in each call until one succeeds, or `reset`.
            write: of the composite.

        Returns:
            The records that a reducer of the chain refused, as rows for `reduce_err`.

        Raises:
            Retry: not now; the reason names the branch.
            StrategyError: the sink takes these rows no longer; the message names the branch.
            Exception: as `attempt_flush`.
        """
        self._attempts += 1
        if not self._next and not self._buffers[0].held:
            for each in rows:
                self._buffers[0].add_unlimited(each)
        while self._next < len(self._buffers):
            buffer = self._buffers[self._next]
            is_last = self._next == len(self._buffers) - 1
            if buffer.held:
                own = self._write(write) if is_last else NEW
                try:
                    outcome = await attempt_flush(buffer, self._stage, self._attempts, own)
                except Retry as retry:
                    kind = MistakeRetry if isinstance(retry, MistakeRetry) else Retry
                    raise kind(
                        f"branch {self.name}: {retry.reason}",
                        after=retry.after,
                        may_double=retry.may_double,
                    ) from (retry.__cause__ or retry)
                except StrategyError as error:
                    raise StrategyError(f"branch {self.name}: {error}") from error
                self._failed += outcome.failed
                if outcome.forward is not None and not is_last:
                    self._buffers[self._next + 1].add_unlimited(outcome.forward)
            buffer.clear()
            self._next += 1
        failed = self._failed
        self.reset()
        return failed

    def _write(self, write: Write) -> Write:
        announced = write.announcement
        if announced is None:
            return write
        token = f"{announced.token}+{self.name}"
        return replace(write, announcement=msgspec.structs.replace(announced, token=token))

    def reset(self) -> None:
        """Forget the rows that are on their way."""
        self._next = self._attempts = 0
        self._failed = []
        for buffer in self._buffers:
            buffer.clear()


def _known(schema: pa.Schema | None, _stage: str) -> pa.Schema | None:
    return schema
