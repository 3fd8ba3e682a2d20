"""Settings of single groups: limits, words and origins as in Apache Kafka, kept over restarts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kmr.broker import BrokerSettings
from kmr.broker.coordinators.groups.group_settings import GroupOverrides
from kmr.broker.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
BROKERS = BrokerSettings(data_dir=Path("unused"))


async def configure(settings: GroupOverrides, **own: str) -> None:
    names = {"session": SESSION, "heartbeat": HEARTBEAT}
    await settings.configure("g", lambda _: {names[name]: text for name, text in own.items()})


async def test_settings_of_a_group_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "group-settings"
    settings = GroupOverrides(path, BROKERS)
    await configure(settings)
    assert not path.exists(), "nothing has changed"
    await configure(settings, session=" 50000 ", heartbeat="7000")
    for each in (settings, GroupOverrides(path, BROKERS)):
        assert list(each) == ["g"]
        assert each.own("g") == {SESSION: "50000", HEARTBEAT: "7000"}
        assert (each.session_timeout("g"), each.heartbeat_interval("g")) == (50.0, 7.0)
        assert (each.session_timeout("h"), each.heartbeat_interval("h")) == (45.0, 5.0)
    await configure(settings)
    assert not list(settings)
    assert not list(GroupOverrides(path, BROKERS))


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "group-settings"
    path.write_text('{"groups": {"g": {}}, "checksum": "00000000"}')
    with pytest.raises(ValueError, match="checksum"):
        GroupOverrides(path, BROKERS)


def refusal(settings: GroupOverrides, own: Mapping[str, str]) -> str:
    with pytest.raises(RequestError) as raised:
        settings.check(own)
    return raised.value.message


def test_values_are_refused_in_the_words_of_kafka() -> None:
    settings = GroupOverrides(None, BROKERS)
    low, high = "must be greater than or equal to", "must be less than or equal to"
    limit = "group.consumer.{}.session.timeout.ms"
    assert refusal(settings, {SESSION: "44999"}) == f"{SESSION} {low} {limit.format('min')}"
    assert refusal(settings, {SESSION: "60001"}) == f"{SESSION} {high} {limit.format('max')}"
    limit = "group.consumer.{}.heartbeat.interval.ms"
    assert refusal(settings, {HEARTBEAT: "4999"}) == f"{HEARTBEAT} {low} {limit.format('min')}"
    assert refusal(settings, {HEARTBEAT: "15001"}) == f"{HEARTBEAT} {high} {limit.format('max')}"
    number = "for configuration consumer.session.timeout.ms: Not a number of type INT"
    for text in ("x", "", "4.5e4", "99999999999"):
        assert refusal(settings, {SESSION: text}) == f"Invalid value {text} {number}"
    assert refusal(settings, {"nope": "1"}) == "Unknown group config name: nope"


def test_the_brokers_own_values_move_the_limits() -> None:
    quick = BrokerSettings(
        data_dir=Path("unused"),
        group_consumer_session_timeout=6.0,
        group_consumer_heartbeat_interval=1.0,
    )
    settings = GroupOverrides(None, quick)
    assert settings.check({SESSION: "6000", HEARTBEAT: "1000"})
    assert refusal(settings, {SESSION: "5999"})
    assert refusal(settings, {HEARTBEAT: "6000"}) == f"{SESSION} must be greater than {HEARTBEAT}"
    described = [(each.value, each.synonyms[0].name) for each in settings.describe("g")]
    assert described == [("6000", f"group.{SESSION}"), ("1000", f"group.{HEARTBEAT}")]
