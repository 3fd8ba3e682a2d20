"""The responses of one connection, sent in the order of their requests."""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, cast

from ..apis.api import Buffered, Deferred
from ..protocol.fetch_response import FETCH_HEADROOM
from ..protocol.headers import response_frame_header

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from .dispatch import PendingResponse


_SLICE_BYTES = 256 * 1024  # one write of a large response: the transport copies the unsent rest
_COPIED_BYTES = 32 * 1024  # up to this size a copy is cheaper than keeping the buffer
_MAX_WAITING = 64


def _keep() -> None:
    """Release a response that is in no pooled buffer."""


class Outbox:
    """Sends all ready responses in one write, and large ones in slices as the client reads them.

    Calls: `add` for each response, `send` when more may be ready; `pause` and `resume` with the
    transport's flow control; `close` once.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._answers: deque[PendingResponse] = deque()
        self._sending: tuple[Buffered, int] | None = None
        self._writable = True
        self._closed = False

    @property
    def is_full(self) -> bool:
        """Whether a response must be sent before the next request is handled."""
        if self.is_blocked:
            return True
        answers = self._answers
        return bool(answers) and (
            len(answers) >= _MAX_WAITING or isinstance(answers[-1].response, Buffered)
        )

    @property
    def is_blocked(self) -> bool:
        """Whether nothing can be sent until the client reads."""
        return self._sending is not None or not self._writable

    @property
    def is_empty(self) -> bool:
        """Whether all responses are sent."""
        return not self._answers and not self.is_blocked

    @property
    def waiting(self) -> Iterator[PendingResponse]:
        """The responses that cannot be sent yet."""
        return iter(self._answers)

    def add(self, answer: PendingResponse) -> None:
        """Append a response for `send`."""
        self._answers.append(answer)

    def pause(self) -> None:
        """Stop sending: the transport's buffer is not empty."""
        self._writable = False

    def resume(self) -> None:
        """Allow `send` again: the transport's buffer is empty."""
        self._writable = True

    def close(self) -> None:
        """Discard the unsent responses."""
        self._closed = True
        for answer in self.waiting:
            if isinstance(answer.response, Buffered):
                answer.response.release()
        self._answers.clear()
        if self._sending is not None:
            self._sending[0].release()
            self._sending = None

    def send(self) -> None:
        """Send the responses that are ready; close the connection if this raises anything."""
        ready: list[bytes | bytearray] = []
        answers, now = self._answers, 0.0
        self._continue_sending()
        while answers and self._sending is None and not self._closed:
            answer = answers[0]
            response = answer.response
            if isinstance(response, Deferred):
                flush = response.flush
                if not flush.done:
                    break
                response = response.after_failure() if flush.failed else response.body
            answers.popleft()
            now = now or monotonic()
            answer.meter.answered(now - answer.began)
            if isinstance(response, Buffered):
                self._write(ready)
                ready = []
                self._begin_sending(answer, response)
                continue
            body = cast("bytes | bytearray", response)
            ready.append(
                response_frame_header(answer.correlation_id, len(body), flexible=answer.flexible)
            )
            if len(body) <= _SLICE_BYTES:
                ready.append(body)
            else:
                self._write(ready)
                ready = []
                self._sending = (Buffered(memoryview(body), _keep), 0)
                self._continue_sending()
        self._write(ready)

    def _write(self, ready: list[bytes | bytearray]) -> None:
        if ready:
            self._transport.write(b"".join(ready))

    def _begin_sending(self, answer: PendingResponse, response: Buffered) -> None:
        body_bytes = len(response.view) - FETCH_HEADROOM
        header = response_frame_header(answer.correlation_id, body_bytes, flexible=answer.flexible)
        start = FETCH_HEADROOM - len(header)
        response.view[start:FETCH_HEADROOM] = header
        if len(response.view) <= _COPIED_BYTES:
            self._transport.write(bytes(response.view[start:]))
            response.release()
        else:
            self._sending = (response, start)
            self._continue_sending()

    def _continue_sending(self) -> None:
        """Write slices until the transport pauses; release the buffer after the last one."""
        if self._sending is None:
            return
        response, at = self._sending
        # A failed transport never pauses: it would log a warning for each write.
        while at < len(response.view) and self._writable and not self._transport.is_closing():
            self._transport.write(response.view[at : at + _SLICE_BYTES])
            at += _SLICE_BYTES
        if at < len(response.view) or not self._writable:
            self._sending = (response, at)
        else:
            self._sending = None
            response.release()
