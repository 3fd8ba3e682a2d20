"""A fetch that waits, for records or for memory, without a task of its own.

It is tried again when its partitions have grown by enough bytes, when one of them is closed, and when the
client's time is over.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from ...topics.topic import Watch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...topics.topic import Partition
    from ..api import Reply
    from .fetch import Fetch
    from .plain_fetch import PlainFetch


class Lacking(NamedTuple):
    """What a fetch waits for: its partitions have to grow by some bytes, it needs a buffer, or nothing.

    A fetch that waits for nothing has few records, and takes with it those of the requests that are here.
    """

    partitions: Sequence[Partition] = ()
    missing_bytes: int = 0
    buffer_bytes: int = 0


class LongPoll:
    """Waits from its creation on.

    Attributes:
        reply: the future reply; cancel it to end the wait.
    """

    def __init__(self, fetch: Fetch | PlainFetch, lacking: Lacking) -> None:
        self._fetch = fetch
        self._loop = asyncio.get_running_loop()
        self.reply: asyncio.Future[Reply] = self._loop.create_future()
        self.reply.add_done_callback(self._end)
        self._timer = self._loop.call_at(fetch.deadline, self._time_is_over)
        self._watch: Watch | None = None
        self._memory: asyncio.Future[memoryview] | None = None
        self._wait(lacking)

    def _wait(self, lacking: Lacking) -> None:
        if lacking.buffer_bytes:
            self._memory = self._fetch.buffers.when_available(lacking.buffer_bytes)
            self._memory.add_done_callback(self._got_memory)
        elif lacking.missing_bytes:
            self._watch = Watch(lacking.partitions, lacking.missing_bytes, self._due)
            self._watch.begin()
        else:
            # Records that are appended in this turn are written at the end of the next one.
            self._loop.call_soon(self._due)

    def _due(self) -> None:
        # Not now: the flush that calls is about to show records of further partitions.
        self._loop.call_soon(self._try_again)

    def _time_is_over(self) -> None:
        self._fetch.out_of_time = True
        if self._memory is None:
            self._try_again()

    def _got_memory(self, memory: asyncio.Future[memoryview]) -> None:
        self._memory = None
        if not memory.cancelled():
            self._try_again(memory.result())

    def _try_again(self, buffer: memoryview | None = None) -> None:
        if self.reply.done():
            if buffer is not None:
                self._fetch.buffers.put(buffer)
            return
        self._stop_watching()
        try:
            answer = self._fetch.answer_now(buffer)
            if isinstance(answer, Lacking):
                self._wait(answer)
            else:
                self.reply.set_result(answer)
        except Exception as error:  # noqa: BLE001  the connection logs it
            self.reply.set_exception(error)

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.end()
            self._watch = None

    def _end(self, _: asyncio.Future[Reply]) -> None:
        self._timer.cancel()
        self._stop_watching()
        if self._memory is not None:
            self._memory.cancel()
