"""How a request is checked before its handler sees it, and answered when it is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from broker.apis.refusals import answer_list, refusal
from broker.security.acls import CLUSTER, Operation, Resource

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from broker.api import RequestContext

__all__ = ["CODES", "Call", "Guard", "Need", "Needed", "Rule", "decide_each"]

CODES: Final = {
    Resource.TOPIC: ErrorCode.topic_authorization_failed,
    Resource.GROUP: ErrorCode.group_authorization_failed,
    Resource.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
    Resource.CLUSTER: ErrorCode.cluster_authorization_failed,
}


class Need(NamedTuple):
    """An operation on a resource that must be allowed."""

    operation: Operation
    resource: Resource
    name: str = CLUSTER


@dataclass(frozen=True, slots=True)
class Call:
    """One request that may be refused."""

    api: Any
    context: RequestContext
    request: Any

    def lacks(self, need: Need) -> bool:
        return not self.context.allows(*need)

    async def answer(self, request: Any = None) -> Any:
        """Let the handler answer, this request or what is left of it."""
        response = self.api.handler(self.context, self.request if request is None else request)
        return await response if isawaitable(response) else response

    def refuse(self, code: ErrorCode, *, lists: bool = True) -> Any:
        return refusal(self.api.response, self.request, code, lists=lists)

    async def answer_but(self, field: str, refused: dict[Any, ErrorCode]) -> Any:
        """Answer without these elements of the request's list `field`, and add their refusals."""
        if not refused:
            return await self.answer()
        rest = tuple(each for each in getattr(self.request, field) if each not in refused)
        response = await self.answer(replace(self.request, **{field: rest}))
        name, element = answer_list(self.api.response)
        refusals = tuple(refusal(element, each, code) for each, code in refused.items())
        return replace(response, **{name: (*getattr(response, name), *refusals)})


Guard: TypeAlias = "Callable[[Call], Awaitable[Any]]"
Needed: TypeAlias = "Callable[[Any], Iterable[Need]]"
"""What an element of a request needs: any one of these."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`whole`: operation, resource and field with its name, all needed for anything at all.

    `field` and `each`: the list of what is decided one by one.
    """

    whole: tuple[tuple[Operation, Resource, str], ...] = ()
    field: str = ""
    each: Needed | None = None
    lists: bool = True

    async def __call__(self, call: Call) -> Any:
        for operation, resource, field in self.whole:
            need = Need(operation, resource)
            if field:
                need = need._replace(name=getattr(call.request, field))
            if call.lacks(need):
                return call.refuse(CODES[resource], lists=self.lists)
        if self.each is None:
            return await call.answer()
        return await decide_each(call, self.field, self.each)


async def decide_each(call: Call, field: str, needed: Needed) -> Any:
    refused = {}
    for element in getattr(call.request, field):
        needs = list(needed(element))
        if needs and all(call.lacks(each) for each in needs):
            refused[element] = CODES[needs[0].resource]
    return await call.answer_but(field, refused)
