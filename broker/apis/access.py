"""Authorization: the permissions that an API needs, and how a request without them is refused.

Each `Api` has a rule in its field `access`: an `Access`, or a coroutine function of a `Call` where several
permissions depend on each other or the response has to be filtered. Rules apply on a broker with access
rules (--acls); permissions and error codes are those of Kafka's authorizer. Produce and Fetch, which read
their requests themselves, ask `RequestContext.allows`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import UTC, datetime
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32

from ..authorization.rules import CLUSTER, Operation, Resource
from ..protocol.messages import default_message, entity_in, has_error_codes
from ..turns import in_turns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from .api import Api, RequestContext

DENIED: Final = {
    Resource.TOPIC: ErrorCode.topic_authorization_failed,
    Resource.GROUP: ErrorCode.group_authorization_failed,
    Resource.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
    Resource.CLUSTER: ErrorCode.cluster_authorization_failed,
}
"""The error code of an operation that is not allowed."""

_MESSAGES: Final = {
    ErrorCode.topic_authorization_failed: "not authorized for this topic",
    ErrorCode.group_authorization_failed: "not authorized for this group",
    ErrorCode.transactional_id_authorization_failed: "not authorized for this transactional id",
    ErrorCode.cluster_authorization_failed: "not authorized for the cluster",
}


class Need(NamedTuple):
    """A permission: an operation on a resource."""

    operation: Operation
    resource: Resource
    name: str = CLUSTER


# -- rules -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """A request on its way to the handler of an API."""

    api: Api
    context: RequestContext
    request: Any

    def allows(self, operation: Operation, resource: Resource, name: str = CLUSTER) -> bool:
        return self.context.allows(operation, resource, name)

    async def answer(self, request: Any = None) -> Any:
        """Call the handler, by default with the whole request."""
        response = self.api.handler(self.context, self.request if request is None else request)
        return await response if isawaitable(response) else response

    async def answer_without(self, field: str, refused: Mapping[Any, ErrorCode]) -> Any:
        """Call the handler without these elements of the request's list `field`, and add their refusals."""
        if not refused:
            return await self.answer()
        elements = in_turns(getattr(self.request, field))
        rest = [each async for each in elements if each not in refused]
        response = await self.answer(replace(self.request, **{field: tuple(rest)}))
        return await self.add_refusals(response, refused)

    async def add_refusals(self, response: Any, refused: Mapping[Any, ErrorCode]) -> Any:
        """Return the response with a refusal for each of these elements of the request."""
        name, element_type = response_list(self.api.response)
        refusals = await self.refusals(element_type, refused)
        return replace(response, **{name: (*getattr(response, name), *refusals)})

    async def visible(self, response: Any, field: str, resource: Resource) -> Any:
        """Return the response with those elements of its list `field` that the client may describe."""
        elements = in_turns(getattr(response, field))
        allowed = [e async for e in elements if self.allows(Operation.DESCRIBE, resource, _name(e))]
        return replace(response, **{field: tuple(allowed)})

    async def refuse(self, code: ErrorCode, elements: Iterable[Any] | None = None) -> Any:
        """Refuse the whole request; `elements`: see `refusal`."""
        (response,) = await self.refusals(self.api.response, {self.request: code}, elements)
        return response

    async def refusals(
        self,
        response_type: Any,
        refused: Mapping[Any, ErrorCode],
        elements: Iterable[Any] | None = None,
    ) -> list[Any]:
        """Make a `refusal` of each, in another thread: they may list thousands of partitions."""

        def refuse() -> list[Any]:
            return [refusal(response_type, *each, elements) for each in refused.items()]

        return await self.context.services.compute(refuse)


AccessRule: TypeAlias = "Callable[[Call], Awaitable[Any]]"
Needs: TypeAlias = "Callable[[Call, Any], Iterable[Need]]"


@dataclass(frozen=True, slots=True)
class Access:
    """The permissions that a request needs.

    Attributes:
        whole: operation, resource, and the request's field that names the resource (none for the cluster).
            Without each of them the whole request is refused.
        each: a list of the request whose elements are allowed or refused one by one, with the operation and
            the kind of resource that an element names; or with a function that returns an element's needs,
            of which one suffices (and no needs allow it).
        elements: returns the elements that a refusal of the whole request lists; by default those of the
            request's only list.
    """

    whole: Sequence[tuple[Operation, Resource] | tuple[Operation, Resource, str]] = ()
    each: tuple[str, Operation, Resource] | tuple[str, Needs] | None = None
    elements: Callable[[Any], Iterable[Any]] | None = None

    async def __call__(self, call: Call) -> Any:
        for operation, resource, *field in self.whole:
            name = getattr(call.request, field[0]) if field else CLUSTER
            if not call.allows(operation, resource, name):
                elements = None if self.elements is None else self.elements(call.request)
                return await call.refuse(DENIED[resource], elements)
        if self.each is None:
            return await call.answer()
        refused = {}
        async for element in in_turns(getattr(call.request, self.each[0])):
            needs = list(self._needs(call, element))
            if needs and not any(call.allows(*each) for each in needs):
                refused[element] = DENIED[needs[0].resource]
        return await call.answer_without(self.each[0], refused)

    def _needs(self, call: Call, element: Any) -> Iterable[Need]:
        match self.each:
            case (_, Operation() as operation, Resource() as resource):
                return [Need(operation, resource, _name(element))]
            case (_, needs):
                return needs(call, element)
            case _:
                return ()


EVERYONE: Final = Access()
"""Needs no permission."""

DESCRIBE_CLUSTER: Final = Access(whole=[(Operation.DESCRIBE, Resource.CLUSTER)])


def authorized(api: Api) -> Api:
    """Return the API with a handler that applies its access rule first."""
    if api.access is EVERYONE:
        return api
    return replace(api, handler=partial(_authorize, api))


async def _authorize(api: Api, context: RequestContext, request: Any) -> Any:
    return await api.access(Call(api, context, request))


# -- refusals --------------------------------------------------------------------------------------

_ABSENT: Final = {
    **dict.fromkeys(("offset", "committed_offset", "end_offset", "low_watermark", "timestamp"), -1),
    **dict.fromkeys(("leader_epoch", "committed_leader_epoch", "generation_id"), -1),
    **dict.fromkeys(("producer_id", "producer_epoch", "node_id", "port"), -1),
    "transaction_start_time": datetime.fromtimestamp(0, UTC),
}
"""Values for "none", where they differ from the field's default."""

_NAMES: Final = ("name", "topic", "topic_name", "group_id", "key", "transactional_id", "user")
_INDEXES: Final = ("partition_index", "partition", "index", "partition_id")


def refusal(
    response_type: Any, asked: Any, code: ErrorCode, elements: Iterable[Any] | None = None
) -> Any:
    """Return a response, or an element of one, with `code` in each of its fields for error codes.

    `asked` is what is refused: a request, an entity of one, a name or an index. `elements` are listed in the
    response, each with the code; by default those of the only list in `asked`.
    """
    values: dict[str, object] = {}
    for field in fields(response_type):
        element_type = entity_in(field.type)
        if field.type is ErrorCode:
            values[field.name] = code
        elif field.name == "error_message":
            values[field.name] = _MESSAGES.get(code)
        elif element_type is not None:
            if has_error_codes(element_type):
                listed = _elements(asked) if elements is None else elements
                values[field.name] = tuple(refusal(element_type, each, code) for each in listed)
        elif field.name in _ABSENT:
            values[field.name] = _ABSENT[field.name]
        elif hasattr(asked, field.name):
            values[field.name] = getattr(asked, field.name)
        else:
            values |= _identity(field.name, asked)
    return default_message(response_type, **values)


def response_list(response_type: Any) -> tuple[str, Any]:
    """Return name and element type of the list with one result for each element of the request."""
    return next(
        (field.name, element_type)
        for field in fields(response_type)
        if (element_type := entity_in(field.type)) is not None and has_error_codes(element_type)
    )


def _identity(name: str, asked: Any) -> dict[str, object]:
    """Return the name or index of `asked` under the name that the response's field has for it."""
    for names in (_NAMES, _INDEXES):
        if name not in names:
            continue
        if not is_dataclass(asked):
            return {name: asked}
        theirs = next((each for each in names if hasattr(asked, each)), None)
        return {} if theirs is None else {name: getattr(asked, theirs)}
    return {}


def _name(element: Any) -> str:
    if not is_dataclass(element):
        return str(element)
    return next(str(getattr(element, each)) for each in _NAMES if hasattr(element, each))


def _elements(asked: Any) -> Iterable[Any]:
    """Return the elements of the only list in `asked`."""
    lists = (getattr(asked, field.name) for field in fields(asked))
    return next((each for each in lists if isinstance(each, tuple)), ())


# -- authorized operations (KIP-430) ---------------------------------------------------------------

_NOT_ASKED_FOR: Final = i32(-(2**31))

OPERATION_CODES: Final[Mapping[Operation, int]] = {
    Operation.ALL: 2,
    Operation.READ: 3,
    Operation.WRITE: 4,
    Operation.CREATE: 5,
    Operation.DELETE: 6,
    Operation.ALTER: 7,
    Operation.DESCRIBE: 8,
    Operation.CLUSTER_ACTION: 9,
    Operation.DESCRIBE_CONFIGS: 10,
    Operation.ALTER_CONFIGS: 11,
    Operation.IDEMPOTENT_WRITE: 12,
}
"""The protocol's codes (`AclOperation` of the Java client)."""

_OPERATIONS: Final = {
    Resource.TOPIC: set(Operation)
    - {Operation.ALL, Operation.CLUSTER_ACTION, Operation.IDEMPOTENT_WRITE},
    Resource.GROUP: {
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    },
    Resource.CLUSTER: set(Operation)
    - {Operation.ALL, Operation.READ, Operation.WRITE, Operation.DELETE},
}


def authorized_operations(
    context: RequestContext, resource: Resource, name: str = CLUSTER, *, wanted: bool = True
) -> i32:
    """Return a bit for each operation that the client is allowed: bit n is the operation with code n."""
    if not wanted:
        return _NOT_ASKED_FOR
    allowed = [each for each in _OPERATIONS[resource] if context.allows(each, resource, name)]
    return i32(sum(1 << OPERATION_CODES[each] for each in allowed))
