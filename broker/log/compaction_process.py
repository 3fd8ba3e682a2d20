"""A pass of compaction in a process of its own, so that it never holds the broker's interpreter lock.

The process is a fresh interpreter that imports little. It is sent the `CompactionPlan` over a socket and
answers when it has read the keys; then it is sent one group after the other and answers each. It reads
closed segments and writes `swap_source`. The broker plans, swaps and saves the state. Without a broker the
process ends at its next message, which is at most `_BEAT_SECONDS` later unless the disk hangs.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Final, NamedTuple

from .compaction import Compaction, Rewritten, Stopped
from .results import LogCorrupt
from .swap import discard_swap

if TYPE_CHECKING:
    from collections.abc import Callable

    from .compaction import CompactionPlan, Group


_BEAT_SECONDS: Final = 0.1
_POLL_SECONDS: Final = 0.05
_NICENESS: Final = 10


class _Answer(NamedTuple):
    """The outcome of a step: the rewritten group if there is one, and the attributes of `Compaction`."""

    rewritten: Rewritten | None
    clean_to: int
    tombstones: list[int]
    error: LogCorrupt | OSError | None = None


class CompactionProcess:
    """One pass over a log, in another process; all methods block and belong into a thread.

    Calls: `read_keys` once, `rewrite` for each of `CompactionPlan.groups` in order, `close` in any case. The
    attributes are those of `Compaction`.
    """

    def __init__(
        self, plan: CompactionPlan, *, stopped: Callable[[], bool], beat: Callable[[], None]
    ) -> None:
        """Start nothing yet.

        Args:
            plan: the pass.
            stopped: called every 50 ms; True ends the pass and the process.
            beat: called about every 100 ms while the process makes progress.
        """
        self.clean_to = plan.state.clean_to
        self.tombstones: list[int] = []
        self._plan = plan
        self._stopped = stopped
        self._beat = beat
        self._process: subprocess.Popen[bytes] | None = None
        self._connection, self._other_end = Pipe()

    def read_keys(self) -> None:
        """Start the process, and let it do the same as `Compaction`.

        Raises:
            Stopped: `stopped` returned True.
            LogCorrupt: a segment is damaged.
            OSError: the disk failed; ChildProcessError: the process ended too early.
        """
        descriptor = self._other_end.fileno()
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve({descriptor})"
        self._process = subprocess.Popen(  # noqa: S603  this interpreter
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[descriptor],
            start_new_session=True,  # Ctrl-C is for the broker, which ends the process
        )
        self._other_end.close()
        self._ask(self._plan)

    def rewrite(self, group: Group) -> Rewritten | None:
        """Do the same as `Compaction`; raise the same errors as `read_keys`."""
        try:
            return self._ask(group)
        except BaseException:
            self.close()
            discard_swap(self._plan.directory, group[0].base_offset)
            raise

    def close(self) -> None:
        """Kill the process, and wait until it has ended."""
        self._connection.close()
        self._other_end.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _ask(self, request: CompactionPlan | Group) -> Rewritten | None:
        try:
            # Not by `send`, which pickles into a BytesIO and sends a view of it: if the process is gone, the
            # error's traceback has both, and Python 3.13 complains when it collects them as garbage.
            self._connection.send_bytes(pickle.dumps(request))
            answer = self._received()
        except (EOFError, ConnectionError):
            raise self._ended() from None
        if answer.error is not None:
            raise answer.error
        self.clean_to = answer.clean_to
        self.tombstones += answer.tombstones
        return answer.rewritten

    def _received(self) -> _Answer:
        while True:
            if self._stopped():
                raise Stopped
            if self._connection.poll(_POLL_SECONDS):
                answer: _Answer | None = self._connection.recv()
                if answer is not None:
                    return answer
                self._beat()

    def _ended(self) -> ChildProcessError:
        self.close()
        code = self._process.returncode if self._process is not None else None
        return ChildProcessError(
            f"{self._plan.directory}: the process that compacts it ended early (exit code {code});"
            " the next pass starts another"
        )


def serve(descriptor: int) -> None:
    """Do one pass for the broker at the other end of this socket, until it closes the socket."""
    os.nice(_NICENESS)
    broker = Connection(descriptor)
    due = 0.0

    def beat() -> None:
        nonlocal due
        if (now := time.monotonic()) >= due:
            due = now + _BEAT_SECONDS
            broker.send(None)

    with suppress(EOFError, ConnectionError):  # the broker has ended
        compaction = Compaction(broker.recv(), beat=beat)
        broker.send(_answer(compaction, compaction.read_keys))
        while True:
            broker.send(_answer(compaction, partial(compaction.rewrite, broker.recv())))


def _answer(compaction: Compaction, step: Callable[[], Rewritten | None]) -> _Answer:
    known = len(compaction.tombstones)
    rewritten: Rewritten | None = None
    error: LogCorrupt | OSError | None = None
    try:
        rewritten = step()
    except (LogCorrupt, OSError) as raised:
        error = raised
    return _Answer(rewritten, compaction.clean_to, compaction.tombstones[known:], error)
