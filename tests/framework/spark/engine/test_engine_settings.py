"""The engine's settings, and a worker's settings as options of the source."""

from __future__ import annotations

from typing import Any

import pytest

from kmr.errors import SettingsError
from kmr.kafka.subscription import Subscription
from kmr.kafka.tokens import OAuthConfig
from kmr.settings import SecuritySettings, Settings
from kmr.spark.engine.engine_settings import EngineSettings, source_options
from kmr.spark.source.options import SourceOptions


def settings(**more: Any) -> Settings:
    return Settings(topics=("a", "b"), group="g", bootstrap_servers="k:9092", **more)


def test_a_workers_settings_become_options_that_the_source_takes() -> None:
    found = source_options(settings(), EngineSettings(checkpoint="c", min_partitions=4))
    parsed = SourceOptions.parse(found, streaming=True)
    assert parsed.subscription.topics == ("a", "b")
    assert (parsed.group, parsed.min_partitions) == ("g", 4)
    by_pattern = Settings(topic_pattern="a.*", group="g")
    parsed = SourceOptions.parse(
        source_options(by_pattern, EngineSettings(checkpoint="c")), streaming=True
    )
    assert parsed.subscription == Subscription(pattern="a.*")


def test_tokens_need_the_python_source() -> None:
    security = SecuritySettings(
        protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", oauth_token_provider="a:b"
    )
    found = source_options(settings(security=security), EngineSettings(checkpoint="c"))
    assert SourceOptions.parse(found, streaming=True).client.oauth == OAuthConfig(provider="a:b")
    with pytest.raises(SettingsError, match="needs --spark-source python"):
        source_options(settings(security=security), EngineSettings(checkpoint="c", source="jvm"))


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
