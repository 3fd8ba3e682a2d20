"""Tokens for Amazon MSK with IAM: `security.oauth_token_provider = "kmr.kafka.msk:token"`."""

from __future__ import annotations

import os
import time

from .._extras import require_extra
from ..errors import SettingsError


def token() -> tuple[str, float]:
    """Return a token signed with the credentials of AWS's usual chain, and its lifetime in seconds.

    The region is that of AWS_REGION or AWS_DEFAULT_REGION.

    Raises:
        MissingExtra: the extra `[aws]` is not installed.
        SettingsError: the region is not set.
    """
    require_extra("aws", "Amazon MSK with IAM")
    from aws_msk_iam_sasl_signer import (  # type: ignore[import-untyped]
        MSKAuthTokenProvider,
    )

    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        raise SettingsError("kmr.kafka.msk:token needs the region: set AWS_REGION")
    signed, expires = MSKAuthTokenProvider.generate_auth_token(region)
    return signed, expires / 1000 - time.time()
