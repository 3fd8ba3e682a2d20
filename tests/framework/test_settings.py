"""The settings of a worker: values that do not fit together, secrets, and settings built by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from kmr.errors import SettingsError
from kmr.settings import MIB, FetchSettings, SecuritySettings, Settings

from .settings_files import MINIMAL, refusal, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"revoke_deadline": "70s"},
            (
                "revoke_deadline (70 s) must be below rebalance_timeout (60 s) "
                "(revoke_deadline from flag --revoke-deadline, rebalance_timeout from default)"
            ),
        ),
        ({"heartbeat_interval": 30}, "heartbeat_interval (30 s) must be below session_timeout"),
        (
            {"fetch.max_bytes": "1kB", "fetch.max_partition_bytes": "2kB"},
            "fetch.max_partition_bytes (2000) must not be above",
        ),
        ({"inflight_bytes": "1kB"}, "inflight_bytes (1000) must not be below"),
        (
            {"security.protocol": "SASL_SSL"},
            "security.protocol SASL_SSL needs security.sasl_user and security.sasl_password",
        ),
        ({"security.ssl_keyfile": "k.pem"}, "go together: set both or neither"),
    ],
)
def test_settings_that_do_not_fit_together_are_named_with_their_origins(
    flags: dict[str, object], message: str
) -> None:
    assert message in refusal(flags=MINIMAL | flags)


def test_settings_made_by_hand_are_checked_too() -> None:
    with pytest.raises(SettingsError, match="queue_batches must be a whole number > 0, not 0"):
        Settings(topics=("t",), group="g", queue_batches=0)
    with pytest.raises(SettingsError, match=r"must be below rebalance_timeout \(60 s\)"):
        Settings(topics=("t",), group="g", revoke_deadline=60.0)


def test_a_secret_is_never_shown(tmp_path: Path) -> None:
    security = SecuritySettings(protocol="SASL_SSL", sasl_user="u", sasl_password="hunter2")
    settings = Settings(topics=("t",), group="g", security=security)
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in repr(settings.describe())
    assert settings.describe()["security.sasl_password"] == "***"
    config = write(tmp_path, '[kmr.security]\nsasl_password = ["hunter2"]')
    message = refusal(config=config, flags=MINIMAL)
    assert "hunter2" not in message
    assert "security.sasl_password" in message


def test_settings_are_immutable_and_refuse_unknown_names() -> None:
    settings = Settings(topics=("t",), group="g")
    with pytest.raises(AttributeError):
        settings.group = "h"  # type: ignore[misc]
    with pytest.raises(TypeError):
        Settings(topics=("t",), group="g", colour="red")  # type: ignore[call-arg]
    assert msgspec.structs.replace(settings, group="h").group == "h"


def test_the_budget_is_a_sixteenth_of_the_memory_unless_it_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def budget(memory: int, **given: Any) -> int:
        monkeypatch.setattr("kmr.settings.memory_limit", lambda: memory)
        return Settings(topics=("t",), group="g", **given).budget

    assert budget(512 * MIB) == 32 * MIB
    assert budget(64 * 1024 * MIB) == 192 * MIB
    assert budget(4 * MIB) == MIB, "a fetch must fit"
    assert budget(512 * MIB, inflight_bytes=5 * MIB) == 5 * MIB


def test_a_response_takes_an_eighth_of_a_small_budget() -> None:
    def response(budget: int) -> int:
        return Settings(topics=("t",), group="g", inflight_bytes=budget).response_bytes

    assert [response(size * MIB) for size in (256, 64, 4)] == [16 * MIB, 8 * MIB, MIB]


def test_a_partition_takes_a_64th_of_the_budget_unless_it_is_set() -> None:
    def partition(budget: int, **given: Any) -> int:
        fetch = FetchSettings(**given)
        return Settings(
            topics=("t",), group="g", inflight_bytes=budget, fetch=fetch
        ).partition_bytes

    assert [partition(size * MIB) for size in (192, 128, 4)] == [3 * MIB, 2 * MIB, MIB]
    assert partition(256 * MIB, max_bytes=1000) == 1000
    assert partition(256 * MIB, max_partition_bytes=5 * MIB) == 5 * MIB


def test_workers_share_the_memory_and_the_processors_for_map_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kmr.settings.memory_limit", lambda: 1024 * MIB)
    monkeypatch.setattr("kmr.settings.processor_limit", lambda: 4)
    monkeypatch.setattr("os.cpu_count", lambda: 8)

    def given(**flags: object) -> Settings:
        return Settings.load(flags=MINIMAL | flags)

    assert (given().worker_count, given().budget) == (1, 64 * MIB)
    four = given(workers="auto")
    assert (four.worker_count, four.budget) == (4, 16 * MIB)
    assert (four.map_workers, given(workers="2", executor="process").map_workers) == (8, 2)
    assert given(workers="8", executor="process").map_workers == 1
    assert given(workers=4, inflight_bytes="5MiB").budget == 5 * MIB
    assert "workers must be a whole number > 0 or 'auto', not 'many'" in refusal(
        flags=MINIMAL | {"workers": "many"}
    )
