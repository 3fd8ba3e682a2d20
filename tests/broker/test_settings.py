from pathlib import Path
from typing import Any

import pytest

from kmr.broker import BrokerSettings
from kmr.broker.settings import is_loopback
from kmr.errors import SettingsError


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"port": 65_536}, "port must be a whole number >= 0 and <= 65535"),
        ({"port": -1}, "port must be"),
        ({"advertised_port": 70_000}, "advertised_port must be"),
        ({"node_id": -1}, "node_id must be a whole number >= 0 and <= 2147483647, not -1"),
        ({"node_id": 2**31}, "node_id must be"),
        ({"default_partitions": 0}, "default_partitions must be a whole number > 0"),
        ({"retention_bytes": 0}, "retention_bytes must be bytes, a whole number > 0"),
        ({"fsync": "never"}, "fsync must be one of always, interval, os, not 'never'"),
        ({"group_initial_rebalance_delay": -1}, "must be seconds, a number >= 0"),
        ({"message_max_bytes": 2**40}, "message_max_bytes .* must not be greater than request"),
        ({"group_min_session_timeout": 3600}, "must not be greater than group_max_session"),
        ({"request_max_bytes": 2**31}, "request_max_bytes"),
        ({"http_port": -1}, "http_port must be a whole number >= 0 and <= 65535"),
        ({"http_port": 0, "http_host": "0.0.0.0"}, "http_host '0.0.0.0' .* set insecure"),
        (
            {"shutdown_timeout": 60},
            "shutdown_timeout .* must not be greater than shutdown_deadline",
        ),
    ],
)
def test_a_value_that_makes_no_sense_is_named(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        BrokerSettings(data_dir=Path("data"), **setting)


def test_metrics_may_be_shown_to_others_by_consent() -> None:
    for consent in ({"insecure": True}, {"http_port": None}):
        settings: dict[str, Any] = {"http_port": 0, "http_host": "0.0.0.0", **consent}
        assert BrokerSettings(data_dir=Path("data"), **settings).http_host == "0.0.0.0"


def test_the_defaults_listen_on_loopback() -> None:
    settings = BrokerSettings(data_dir=Path("data"))
    assert (settings.host, settings.port) == ("127.0.0.1", 9092)
    assert (settings.http_host, settings.http_port) == ("127.0.0.1", None)


@pytest.mark.parametrize(
    ("encrypted", "authenticated", "protocol"),
    [
        (False, False, "PLAINTEXT"),
        (True, False, "SSL"),
        (False, True, "SASL_PLAINTEXT"),
        (True, True, "SASL_SSL"),
    ],
)
def test_the_security_protocol_follows_from_the_settings(
    tmp_path: Path, encrypted: bool, authenticated: bool, protocol: str
) -> None:
    settings = BrokerSettings(
        data_dir=tmp_path,
        tls_certificate=tmp_path / "broker.pem" if encrypted else None,
        tls_key=tmp_path / "broker.key" if encrypted else None,
        users_file=tmp_path / "users.json" if authenticated else None,
    )
    assert [each.protocol for each in settings.addresses()] == [protocol]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("10.0.0.1", False),
        ("kafka.example", False),
    ],
)
def test_other_machines_cannot_reach_a_loopback_address(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"super_users": ("User:admin",)}, r"super_users needs acl_file \(--acls\)"),
        ({"allow_if_no_acl": True}, r"allow_if_no_acl needs acl_file \(--acls\)"),
        (
            {"super_users": ("admin",), "acl_file": Path("acls.json")},
            "'admin' is no principal; use User:",
        ),
    ],
)
def test_exceptions_from_rules_need_rules_and_principals(given: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        BrokerSettings(data_dir=Path("data"), **given)
