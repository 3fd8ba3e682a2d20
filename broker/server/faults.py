"""Faults for tests: requests that fail, wait, lose their connection, or are never answered.

A `Fault` says which requests, and what happens to them; `Faults` are those of one broker, in order. A request
is compared with each, and the first that is due applies. Without faults a request costs one look at a list.
"""

from __future__ import annotations

import asyncio
import tomllib
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import msgspec
from kio.schema.errors import ErrorCode
from msgspec import Meta

from ..apis.access import refusal, response_list
from ..apis.api import CloseConnection, Reply
from ..apis.records import produce
from ..errors import BrokerError
from ..protocol.messages import (
    api_keys,
    error_codes,
    has_field,
    read_message,
    request_type,
    response_type,
    write_message,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ..apis.api import RequestContext


_FETCH: Final = 1
_SESSION_ERRORS: Final = {
    ErrorCode.fetch_session_id_not_found,
    ErrorCode.invalid_fetch_session_epoch,
}


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which requests, and what happens to them.

    A request matches if its API, client id and topic are those that are given. Of the matching requests the
    first `after` are handled as usual, the next `times` (None: all) have the fault, the rest are as usual.

    Attributes:
        api: the API's name in Kafka's documentation, such as `Produce`; None: every API.
        client_id: the client's id; None: every client.
        topic: a topic that the request names, among others; None: any or none.
        after: matching requests before the first fault.
        times: matching requests that have the fault.
        delay: seconds before the request is handled, or has the rest of the fault.
        error: answer with this error code (`NOT_LEADER_OR_FOLLOWER`) in each place that the response has for
            one; the request is not handled.
        disconnect: close the connection; the request is not handled.
        lose_response: handle the request, then close the connection instead of answering.
        never_answer: neither handle nor answer the request, nor later ones of its connection.

    Raises:
        ValueError: an unknown API or error code, or not exactly one thing that happens besides the delay.
    """

    api: str | None = None
    client_id: str | None = None
    topic: str | None = None
    after: Annotated[int, Meta(ge=0)] = 0
    times: Annotated[int, Meta(ge=1)] | None = None
    delay: float = 0.0
    error: str | None = None
    disconnect: bool = False
    lose_response: bool = False
    never_answer: bool = False

    def __post_init__(self) -> None:
        if self.api is not None and self.api not in api_keys():
            known = ", ".join(sorted(api_keys()))
            raise ValueError(f"api {self.api!r} is unknown; use one of {known}")
        if self.error is not None and self.code in (None, ErrorCode.none):
            raise ValueError(
                f"error {self.error!r} is no error code of Kafka; use a name such as "
                "NOT_LEADER_OR_FOLLOWER"
            )
        kinds = (self.error is not None, self.disconnect, self.lose_response, self.never_answer)
        if sum(kinds) > 1 or not (any(kinds) or self.delay):
            raise ValueError(
                "a fault has a delay, or one of error, disconnect, lose_response and never_answer, or "
                "a delay and one of these"
            )
        for name, value, least in (("after", self.after, 0), ("times", self.times, 1)):
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}")
        if not 0 <= self.delay < inf:
            raise ValueError(f"delay must be a number of seconds from 0 on, not {self.delay}")

    @property
    def code(self) -> ErrorCode | None:
        """The error code in the response."""
        return ErrorCode.__members__.get((self.error or "").lower())


@dataclass(slots=True, eq=False)
class InjectedFault:
    """A fault of a broker, and its counts.

    Attributes:
        matched: requests that matched, those before and after the fault included.
        applied: requests that had the fault.
    """

    fault: Fault
    matched: int = 0
    applied: int = 0

    def is_due(self) -> bool:
        """Count a matching request, and return whether it is one with the fault."""
        self.matched += 1
        number = self.matched - self.fault.after
        return number > 0 and (self.fault.times is None or number <= self.fault.times)


class Faults:
    """The faults of one broker; empty unless a test, or the file of `--faults`, adds some.

    Calls: `add`, `remove` and `clear` at any time, in the broker's event loop; `stop` once, when the broker
    stops: requests that wait lose their connection.
    """

    def __init__(self) -> None:
        self.injected: list[InjectedFault] = []
        """The faults, in the order in which requests are compared with them."""
        self._stopped = asyncio.Event()

    def add(self, fault: Fault) -> InjectedFault:
        """Inject a fault; return it with its counts."""
        injected = InjectedFault(fault)
        self.injected.append(injected)
        return injected

    def remove(self, injected: InjectedFault) -> None:
        """Remove a fault; requests that it delays or leaves unanswered stay so."""
        self.injected.remove(injected)

    def clear(self) -> None:
        """Remove all faults."""
        self.injected.clear()

    def stop(self) -> None:
        """End every delay and every request that is never answered: their connections are closed."""
        self._stopped.set()

    def handle(
        self,
        context: RequestContext,
        body: memoryview,
        handler: Callable[[RequestContext, memoryview], Reply],
    ) -> Reply:
        """Handle a request, with the first fault that is due. Raises CloseConnection."""
        due = self._due(context, body)
        if due is None:
            return handler(context, body)
        due.applied += 1
        if due.fault.delay or due.fault.lose_response or due.fault.never_answer:
            # A copy: the connection reuses the memory, and a handler may write to it.
            copy = memoryview(bytearray(body))
            return Reply(later=self._later(due.fault, context, copy, handler))
        return _failed(due.fault, context, body)

    def _due(self, context: RequestContext, body: memoryview) -> InjectedFault | None:
        if context.api_key == produce.KEY and context.api_version < produce.FIRST_SERVED_VERSION:
            return None
        topics: set[str] | None = None
        due = None
        for injected in self.injected:
            fault = injected.fault
            if fault.api is not None and api_keys()[fault.api] != context.api_key:
                continue
            if fault.client_id is not None and fault.client_id != context.client_id:
                continue
            if fault.topic is not None:
                topics = _topics(context, body) if topics is None else topics
                if fault.topic not in topics:
                    continue
            if injected.is_due() and due is None:
                due = injected
        return due

    async def _later(
        self,
        fault: Fault,
        context: RequestContext,
        body: memoryview,
        handler: Callable[[RequestContext, memoryview], Reply],
    ) -> Reply:
        if fault.delay or fault.never_answer:
            with suppress(TimeoutError):
                async with asyncio.timeout(None if not fault.delay else fault.delay):
                    await self._stopped.wait()
        if fault.never_answer:
            await self._stopped.wait()
        if self._stopped.is_set():
            raise CloseConnection("an injected fault held a request until the broker stopped")
        if fault.error is not None or fault.disconnect:
            return _failed(fault, context, body)
        reply = handler(context, body)
        if reply.later is not None:
            reply = await reply.later
        if reply.flush is not None and reply.after_flush is not None:
            await reply.flush.wait()
            reply = Reply(reply.after_flush())
        if fault.lose_response:
            reply.discard()
            raise CloseConnection("an injected fault: the response is lost")
        return reply


def read_faults(path: Path) -> list[Fault]:
    """Read faults from a file of TOML: a table `[[fault]]` for each. Raises BrokerError."""

    class File(msgspec.Struct, forbid_unknown_fields=True):
        fault: tuple[Fault, ...] = ()

    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        return list(msgspec.convert(document, File).fault)
    except OSError as error:
        raise BrokerError(f"cannot read the file of faults {path}: {error.strerror}") from error
    except ValueError as error:
        raise BrokerError(f"the file of faults {path} is invalid: {error}") from error


def _failed(fault: Fault, context: RequestContext, body: memoryview) -> Reply:
    """Return a response with the fault's error code. Raises CloseConnection if it has none."""
    key, version, code = context.api_key, context.api_version, fault.code
    if code is None:
        raise CloseConnection("an injected fault: disconnect")
    request = read_message(request_type(key, version), body, context.services.max_elements)
    if key == produce.KEY and not request.acks:
        raise CloseConnection(f"an injected fault: {fault.error}, and the client wants no answer")
    response = refusal(response_type(key, version), request, code)
    if key == _FETCH and has_field(type(response), "error_code") and code not in _SESSION_ERRORS:
        name, _ = response_list(type(response))
        if getattr(response, name):
            response = replace(response, error_code=ErrorCode.none)
    codes = list(error_codes(response))
    if not codes:
        raise CloseConnection(
            f"an injected fault: {fault.error}, and this response of API {key} has no place for it"
        )
    context.meter.errors.update(codes)
    return Reply(write_message(response))


def _topics(context: RequestContext, body: memoryview) -> set[str]:
    """Return the names of the topics that a request names, also by id."""
    message_type = request_type(context.api_key, context.api_version)
    request = read_message(message_type, body, context.services.max_elements)
    names = set()
    for name in _topic_names(request, is_topic=False):
        if isinstance(name, UUID):
            topic = context.services.topics.by_id(name)
            if topic is not None:
                names.add(topic.name)
        else:
            names.add(name)
    return names


def _topic_names(entity: Any, *, is_topic: bool) -> Iterator[str | UUID]:
    for field in fields(entity):
        value = getattr(entity, field.name)
        about_topics = "topic" in field.name
        if isinstance(value, (str, UUID)):
            if about_topics or (is_topic and field.name == "name"):
                yield value
            continue
        for each in value if isinstance(value, tuple) else (value,):
            if is_dataclass(each):
                yield from _topic_names(each, is_topic=about_topics)
            elif about_topics and isinstance(each, (str, UUID)):
                yield each
