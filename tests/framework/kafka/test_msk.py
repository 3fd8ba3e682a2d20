"""Tokens for Amazon MSK, signed with made-up credentials: no network is needed."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from urllib.parse import parse_qs, urlsplit

import pytest

from kmr.errors import SettingsError
from kmr.kafka import msk
from kmr.kafka.tokens import OAuthConfig, TokenProvider


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aws_msk_iam_sasl_signer")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "made-up")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "made-up too")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")


async def test_a_token_is_a_signed_request_to_connect_to_the_cluster() -> None:
    token = await TokenProvider(OAuthConfig(provider="kmr.kafka.msk:token")).token()
    url = urlsplit(urlsafe_b64decode(token + "==").decode())
    assert url.hostname == "kafka.eu-west-1.amazonaws.com"
    assert parse_qs(url.query)["Action"] == ["kafka-cluster:Connect"]
    _, lifetime = msk.token()
    assert 0 < lifetime <= 900


def test_the_region_must_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    with pytest.raises(SettingsError, match="set AWS_REGION"):
        msk.token()
