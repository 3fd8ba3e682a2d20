"""Secrets in variables, and in files that variables name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kmr.broker.cli.client_command import ClientFlags, client_settings
from kmr.config.secrets import read_secret
from kmr.errors import SettingsError
from kmr.settings import CLUSTER, WORKER
from kmr.sinks.clickhouse.client import ClickHouseAddress

if TYPE_CHECKING:
    from pathlib import Path

VARIABLE = "KMR_SECURITY__SASL_PASSWORD"


def test_a_secret_is_the_variable_or_the_content_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(" pass\nword \r\n")
    assert read_secret({}, "S") is None
    assert read_secret({"S": ""}, "S") is None
    assert read_secret({"S": "value\n"}, "S") == "value\n"
    assert read_secret({"S": "", "S_FILE": str(file)}, "S") == " pass\nword "


@pytest.mark.parametrize(
    ("content", "other", "message"),
    [
        (b"x", "y", "S and S_FILE are both set: remove one"),
        (None, "", "No such file"),
        (b"\n", "", "is empty"),
        (b"\xff", "", "is not text"),
    ],
)
def test_a_file_that_has_no_secret_is_refused(
    tmp_path: Path, content: bytes | None, other: str, message: str
) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SettingsError, match=message):
        read_secret({"S": other, "S_FILE": str(file)}, "S")


def test_every_secret_setting_can_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("hunter2\n")
    for layers in (WORKER, CLUSTER):
        secrets = [setting for setting in layers.settings if setting.secret]
        assert secrets
        for setting in secrets:
            variable = f"{layers.variable(setting)}_FILE"
            found = layers.find(None, {variable: str(file)}, {})[setting.name]
            assert found.value == "hunter2"
            assert found.origin == f"file {file} ({variable})"
    with pytest.raises(SettingsError, match="are both set"):
        WORKER.find(None, {VARIABLE: "x", f"{VARIABLE}_FILE": str(file)}, {})


def test_the_tools_of_the_broker_and_sinks_read_them_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    file.write_text("hunter2\n")
    monkeypatch.setenv(f"{VARIABLE}_FILE", str(file))
    flags = ClientFlags(security_protocol="SASL_PLAINTEXT", sasl_user="u")
    assert client_settings(flags)["sasl_plain_password"] == "hunter2"
    file.write_text("http://u:p@h:8123/d\n")
    monkeypatch.delenv("KMR_CLICKHOUSE_URL", raising=False)
    monkeypatch.setenv("KMR_CLICKHOUSE_URL_FILE", str(file))
    assert ClickHouseAddress.of(None).password == "p"
