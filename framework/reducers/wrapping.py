"""A reducer around another one."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Self

from .flushing import call_flush
from .reducer import limits_of
from .sink import NEW, Sink, Write, capabilities_of

if TYPE_CHECKING:
    import pyarrow as pa

    from ..record import Rows
    from .reducer import Context, Reducer


class Wrapping(Sink):
    """Passes all calls to the reducer in it. A subclass can watch the rows and the results."""

    def __init__(self, inner: Reducer) -> None:
        super().__init__(**limits_of(inner))
        self.capabilities = capabilities_of(inner)
        self.keeps_rows = inner.keeps_rows
        self.inner = inner

    def __deepcopy__(self, memo: object) -> Self:
        """Return a copy around a copy."""
        other = copy.copy(self)
        other.inner = copy.deepcopy(self.inner)
        return other

    async def open(self, context: Context) -> None:
        await self.inner.open(context)

    async def close(self) -> None:
        await self.inner.close()

    def add(self, rows: Rows) -> None:
        self.inner.add(rows)

    def reset(self) -> None:
        self.inner.reset()

    async def flush(self, write: Write = NEW) -> pa.Table | None:
        return await call_flush(self.inner, write)
