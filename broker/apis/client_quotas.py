"""DescribeClientQuotas: what clients may produce and fetch per second (KIP-546).

There is one quota for everybody, by --produce-quota-bytes and --fetch-quota-bytes: the default of users, and
of the client ids of those who do not authenticate. Filters are understood as by Kafka's controller.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from kio.schema.describe_client_quotas.v1.request import (
    ComponentData,
    DescribeClientQuotasRequest,
)
from kio.schema.describe_client_quotas.v1.response import (
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from kio.schema.errors import ErrorCode
from kio.static.primitive import f64

from broker.api import Api
from broker.apis.common import NO_THROTTLE
from broker.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.api import RequestContext

__all__ = ["APIS"]

_USER: Final = "user"
_CLIENT_ID: Final = "client-id"
_IP: Final = "ip"
_EXACT, _DEFAULT, _ANY = range(3)  # how a filter names an entity


def _describe(
    context: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    code, message, entries = ErrorCode.none, None, None
    try:
        _check(request.components)
        values = _values(context)
        kinds = [kind for kind in (_USER, _CLIENT_ID) if values and _is_meant(kind, request)]
        entries = tuple(
            EntryData(entity=(EntityData(entity_type=kind, entity_name=None),), values=values)
            for kind in kinds
        )
    except RequestError as error:
        code, message = error.code, error.message
    return DescribeClientQuotasResponse(
        throttle_time=NO_THROTTLE, error_code=code, error_message=message, entries=entries
    )


def _values(context: RequestContext) -> tuple[ValueData, ...]:
    settings = context.services.settings
    limits = {
        "producer_byte_rate": settings.produce_quota_bytes,
        "consumer_byte_rate": settings.fetch_quota_bytes,
    }
    return tuple(
        ValueData(key=key, value=f64(float(limit)))
        for key, limit in limits.items()
        if limit is not None
    )


def _is_meant(kind: str, request: DescribeClientQuotasRequest) -> bool:
    """Whether the default of this kind is: it has no other kind, and no name."""
    if not request.components:
        return not request.strict
    return all(
        each.entity_type == kind and each.match_type != _EXACT for each in request.components
    )


def _check(components: Sequence[ComponentData]) -> None:
    """Raises RequestError for a filter that makes no sense."""
    times = Counter(each.entity_type for each in components)
    for each in components:
        kind = each.entity_type
        if not kind:
            raise _refused("the type of an entity is empty")
        if times[kind] > 1:
            raise _refused(f"entity type {kind!r} is in the filter more than once")
        if kind not in (_USER, _CLIENT_ID, _IP):
            raise RequestError(ErrorCode.unsupported_version, f"there is no entity type {kind!r}")
        if each.match_type not in (_EXACT, _DEFAULT, _ANY):
            raise _refused(f"there is no match type {each.match_type}")
        if (each.match is None) is (each.match_type == _EXACT):
            raise _refused("a name belongs to an exact match, and to no other one")
    if times[_IP] and len(times) > 1:
        raise _refused("ip is an entity of its own: it cannot be asked for with others")


def _refused(message: str) -> RequestError:
    return RequestError(ErrorCode.invalid_request, message)


APIS = (Api(_describe, DescribeClientQuotasRequest, DescribeClientQuotasResponse, min_version=0),)
