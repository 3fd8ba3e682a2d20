"""ApiVersions: what this broker serves (KIP-35, KIP-511)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kio.schema.api_versions.v4 import ApiVersionsRequest, ApiVersionsResponse
from kio.schema.api_versions.v4.response import ApiVersion
from kio.schema.errors import ErrorCode
from kio.static.primitive import i16

from broker.api import Api
from broker.apis.common import NO_THROTTLE

if TYPE_CHECKING:
    from broker.api import RequestContext, Services

__all__ = ["APIS", "KEY", "unsupported_version"]

KEY = 18
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_FIRST_WITH_SOFTWARE = 3


def _api_versions(context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    names = (request.client_software_name, request.client_software_version)
    if context.api_version >= _FIRST_WITH_SOFTWARE and not all(map(_SOFTWARE.fullmatch, names)):
        return _response(context.services, ErrorCode.invalid_request)
    return _response(context.services, ErrorCode.none)


def unsupported_version(services: Services) -> ApiVersionsResponse:
    """The answer to a version that is not served; the client tries again with one that is."""
    return _response(services, ErrorCode.unsupported_version)


def _response(services: Services, error: ErrorCode) -> ApiVersionsResponse:
    return ApiVersionsResponse(
        error_code=error,
        throttle_time=NO_THROTTLE,
        api_keys=tuple(
            ApiVersion(
                api_key=i16(each.key),
                min_version=i16(each.min_version),
                max_version=i16(each.max_version),
            )
            for each in services.versions
        ),
    )


APIS = (Api(_api_versions, ApiVersionsRequest, ApiVersionsResponse, min_version=0),)
