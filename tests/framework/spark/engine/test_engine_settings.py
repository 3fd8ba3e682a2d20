"""The engine's settings, and those of its source."""

from __future__ import annotations

from typing import Any

import pytest

from kmr.errors import SettingsError
from kmr.kafka.subscription import Subscription
from kmr.kafka.tokens import OAuthConfig
from kmr.settings import SecuritySettings, Settings
from kmr.spark.engine.engine_settings import EngineSettings, source_settings


def settings(**more: Any) -> Settings:
    return Settings(topics=("a", "b"), group="g", bootstrap_servers="k:9092", **more)


def test_a_workers_settings_become_those_of_the_source() -> None:
    ours = settings(isolation_level="read_committed")
    found = source_settings(ours, EngineSettings(checkpoint="c", min_partitions=4))
    assert found.subscription == Subscription(("a", "b"))
    assert (found.group, found.min_partitions, found.from_end) == ("g", 4, False)
    assert found.client.isolation_level == "read_committed"
    by_pattern = Settings(topic_pattern="a.*", group="g", auto_offset_reset="latest")
    found = source_settings(by_pattern, EngineSettings(checkpoint="c"))
    assert found.subscription == Subscription(pattern="a.*")
    assert found.from_end


def test_tokens_reach_the_source() -> None:
    security = SecuritySettings(
        protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", oauth_token_provider="a:b"
    )
    found = source_settings(settings(security=security), EngineSettings(checkpoint="c"))
    assert found.client.oauth == OAuthConfig(provider="a:b")


@pytest.mark.parametrize(
    ("given_settings", "message"),
    [
        ({"checkpoint": ""}, "needs --checkpoint"),
        ({"checkpoint": "c", "trigger": "soon"}, "--trigger must be a time such as 2s"),
        ({"checkpoint": "c", "master": "sc://h"}, "cannot run on Spark Connect"),
        (
            {"checkpoint": "c", "max_offsets_per_trigger": 0},
            "max-offsets-per-trigger must be above",
        ),
    ],
)
def test_wrong_engine_settings_are_refused(given_settings: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        EngineSettings(**given_settings)


def test_a_trigger_is_an_interval_or_what_is_available() -> None:
    assert EngineSettings(checkpoint="c", trigger="1.5s").trigger_arguments() == {
        "processingTime": "1500 milliseconds"
    }
    available = EngineSettings(checkpoint="c", trigger="available-now")
    assert available.trigger_arguments() == {"availableNow": True}
