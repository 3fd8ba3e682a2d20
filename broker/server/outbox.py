"""The responses of one connection, sent in the order of their requests."""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import TYPE_CHECKING

from ..protocol.fetch_response import FETCH_HEADROOM
from ..protocol.headers import response_frame_header

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from ..apis.api import Reply


_SLICE_BYTES = 256 * 1024  # one write of a large response: the transport copies the unsent rest
_COPIED_BYTES = 32 * 1024  # up to this size a copy is cheaper than keeping the buffer
_MAX_WAITING = 64  # requests


class Outbox:
    """Sends all ready responses in one write, and large ones in slices as the client reads them.

    Calls: `add` for each response, `send` when more may be ready; `pause` and `resume` with the
    transport's flow control; `close` once.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._replies: deque[Reply] = deque()
        self._sending: tuple[Reply, memoryview] | None = None  # what is left of its body
        self._writable = True
        self._closed = False
        self._unsent = 0  # requests
        self.is_full = False
        """Whether a response must be sent before the next request is handled."""

    @property
    def is_blocked(self) -> bool:
        """Whether nothing can be sent until the client reads."""
        return self._sending is not None or not self._writable

    @property
    def is_empty(self) -> bool:
        """Whether all responses are sent."""
        return not self._replies and not self.is_blocked

    @property
    def waiting(self) -> Iterator[Reply]:
        """The responses that cannot be sent yet."""
        return iter(self._replies)

    def add(self, reply: Reply) -> None:
        """Append a response for `send`."""
        self._replies.append(reply)
        self._unsent += reply.requests
        if reply.release is not None or self._unsent >= _MAX_WAITING:
            self.is_full = True

    def pause(self) -> None:
        """Stop sending: the transport's buffer is not empty."""
        self._writable = False
        self.is_full = True

    def resume(self) -> None:
        """Allow `send` again, which is next: the transport's buffer is empty."""
        self._writable = True

    def close(self) -> None:
        """Discard the unsent responses."""
        self._closed = True
        for reply in self._replies:
            reply.discard()
        self._replies.clear()
        if self._sending is not None:
            self._sending[0].discard()
            self._sending = None

    def send(self) -> None:
        """Send the responses that are ready; close the connection if this raises anything."""
        ready: list[bytes | bytearray | memoryview] = []
        replies, now = self._replies, 0.0
        self._continue_sending()
        while replies and self._sending is None and not self._closed:
            reply = replies[0]
            body = reply.body
            if reply.flush is not None and reply.after_flush is not None:
                if not reply.flush.done:
                    break
                body = reply.after_flush()
            replies.popleft()
            self._unsent -= reply.requests
            now = now or monotonic()
            reply.meter.answered(now - reply.began, reply.requests)
            if body is None:
                continue
            if reply.release is not None or len(body) > _SLICE_BYTES:
                self._write(ready)
                ready = []
                self._begin_sending(reply, memoryview(body))
            else:
                if reply.correlation_id is not None:
                    ready.append(
                        response_frame_header(
                            reply.correlation_id, len(body), flexible=reply.flexible
                        )
                    )
                ready.append(body)
        self._write(ready)
        self.is_full = (
            self.is_blocked
            or self._unsent >= _MAX_WAITING
            or (bool(replies) and replies[-1].release is not None)
        )

    def _write(self, ready: list[bytes | bytearray | memoryview]) -> None:
        if ready:
            self._transport.write(b"".join(ready))

    def _begin_sending(self, reply: Reply, body: memoryview) -> None:
        headroom = 0 if reply.release is None else FETCH_HEADROOM
        if reply.correlation_id is not None:
            header = response_frame_header(
                reply.correlation_id, len(body) - headroom, flexible=reply.flexible
            )
            if headroom:
                body[headroom - len(header) : headroom] = header
                body = body[headroom - len(header) :]
            else:
                self._transport.write(header)
        if len(body) <= _COPIED_BYTES:
            self._transport.write(bytes(body))
            reply.discard()
        else:
            self._sending = reply, body
            self._continue_sending()

    def _continue_sending(self) -> None:
        """Write slices until the transport pauses; release the buffer after the last one."""
        if self._sending is None:
            return
        reply, left = self._sending
        # A failed transport never pauses: it would log a warning for each write.
        while left and self._writable and not self._transport.is_closing():
            self._transport.write(left[:_SLICE_BYTES])
            left = left[_SLICE_BYTES:]
        if left or not self._writable:
            self._sending = reply, left
        else:
            self._sending = None
            reply.discard()
