"""Settings from layers: where a value comes from, what is allowed, and how a mistake is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.config.schema import settings_of
from kmr.errors import SettingsError
from kmr.settings import WORKER, Settings

from ..settings_files import MINIMAL, refusal, write

if TYPE_CHECKING:
    from pathlib import Path


def test_each_layer_overrides_those_below_it(tmp_path: Path) -> None:
    config = write(
        tmp_path,
        """
        [kmr]
        topics = ["flights"]
        group = "file"
        client_id = "file"
        queue_batches = 7
        [kmr.fetch]
        max_wait = 0.25
        """,
    )
    settings = Settings.load(
        config,
        {"KMR_GROUP": "variable", "KMR_CLIENT_ID": "variable", "KMR_FETCH__MAX_BYTES": "32MiB"},
        {"group": "flag", "http.port": 8080},
    )
    assert settings.topics == ("flights",)
    assert settings.queue_batches == 7
    assert settings.client_id == "variable"
    assert settings.group == "flag"
    assert settings.fetch.max_wait == 0.25
    assert settings.fetch.max_bytes == 32 * 1024 * 1024
    assert settings.fetch.max_partition_bytes is None
    assert settings.http.port == 8080
    assert settings.session_timeout == 30.0


def test_the_origin_of_every_value_is_known(tmp_path: Path) -> None:
    config = write(tmp_path, '[kmr]\ngroup = "g"\n[kmr.log]\nlevel = "debug"')
    found = WORKER.find(config, {"KMR_TOPICS": "a, b"}, {"session_timeout": "45s"})
    assert found["topics"].value == ("a", "b")
    assert found["topics"].origin == "environment variable KMR_TOPICS"
    assert found["log.level"].origin == f"{config} [kmr.log] level"
    assert found["session_timeout"].value == 45.0
    assert found["session_timeout"].origin == "flag --session-timeout"
    assert found["executor"].origin == "default"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"executor": "threads"},
            "executor must be one of inline, process, thread, not 'threads' (from flag --executor)",
        ),
        (
            {"inflight_bytes": "lots"},
            (
                "inflight_bytes must be bytes, a whole number > 0, or with a unit as in 16MiB or "
                "'none', not 'lots' (from flag --inflight-bytes)"
            ),
        ),
        ({"queue_batches": 0}, "queue_batches must be a whole number > 0, not 0"),
        ({"http.port": 70_000}, "http.port must be a whole number >= 0 and <= 65535 or 'none'"),
        (
            {"security.ssl_check_hostname": "maybe"},
            "security.ssl_check_hostname must be true or false, not 'maybe'",
        ),
        ({"topics": []}, "topics is not set: give --topic"),
        (
            {"topic_pattern": "f.*"},
            "topics and topic_pattern exclude each other: set one (topics from flag --topic, topic_pattern",
        ),
        ({"topics": [], "topic_pattern": "("}, "topic_pattern '(' is not a regular expression"),
    ],
)
def test_a_wrong_value_is_named_with_its_origin_and_what_is_allowed(
    flags: dict[str, object], message: str
) -> None:
    assert message in refusal(flags=MINIMAL | flags)


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    config = write(
        tmp_path, '[kmr]\nexecutor = "fast"\ngrup = "g"\nhttp = 80\n[kmr.fetch]\nmaxbytes = 3'
    )
    lines = refusal(config=config, environ={"KMR_QUEUE_BATCHES": "x"}).splitlines()
    assert sorted(lines) == [
        f"executor must be one of inline, process, thread, not 'fast' (from {config} [kmr] executor)",
        f"http is a table: write [kmr.http] (in {config} [kmr])",
        (
            "queue_batches must be a whole number > 0, not 'x' "
            "(from environment variable KMR_QUEUE_BATCHES)"
        ),
        (
            f"there is no setting 'fetch.maxbytes' (in {config} [kmr.fetch]); "
            "did you mean fetch.max_bytes?"
        ),
        f"there is no setting 'grup' (in {config} [kmr]); did you mean group?",
    ]


def test_a_typo_in_a_variable_is_refused_and_foreign_variables_are_ignored() -> None:
    environ = {"KMR_PORT": "tcp://10.0.0.1:80", "KMR_SERVICE_HOST": "10.0.0.1", "KMR_DEBUG": "1"}
    Settings.load(environ=environ, flags=MINIMAL)
    message = refusal(environ=environ | {"KMR_GRUOP": "g"}, flags=MINIMAL)
    assert message == (
        "there is no setting for the environment variable KMR_GRUOP; did you mean KMR_GROUP?"
    )


def test_an_empty_variable_counts_as_not_set() -> None:
    assert Settings.load(environ={"KMR_CLIENT_ID": ""}, flags=MINIMAL).client_id == "kmr"


def test_an_optional_setting_can_be_unset_by_a_higher_layer() -> None:
    settings = Settings.load(environ={"KMR_HTTP__PORT": "80"}, flags=MINIMAL | {"http.port": "off"})
    assert settings.http.port is None


def test_a_missing_setting_says_every_way_to_give_it() -> None:
    assert refusal(flags={"group": "g"}) == (
        "topics is not set: give --topic, set KMR_TOPICS, "
        "or write topics under [kmr] in the TOML file; or set topic_pattern"
    )


def test_a_pattern_takes_the_place_of_topics() -> None:
    assert Settings.load(flags={"group": "g", "topic_pattern": "f.*"}).topics == ()
    with pytest.raises(SettingsError, match="topics is not set: name one or more"):
        Settings(group="g")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[kmr\n", "is not valid TOML: "),
        ('topics = ["a"]', "has no table [kmr]; write the settings under it"),
        ("kmr = 5", "has no table [kmr]"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    assert message in refusal(config=write(tmp_path, text))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "absent.toml"
    assert refusal(config=path) == f"cannot read the settings in {path}: No such file or directory"


def test_a_flag_of_an_unknown_setting_is_refused() -> None:
    assert "'fetch.maxbytes'; did you mean fetch.max_bytes?" in refusal(
        flags=MINIMAL | {"fetch.maxbytes": 1}
    )


@given(st.data())
def test_every_default_survives_the_trip_through_environment_variables(data: st.DataObject) -> None:
    setting = data.draw(
        st.sampled_from([s for s in settings_of(Settings) if not s.required and s.default != ()])
    )
    text = "none" if setting.default is None else str(setting.default)
    found = WORKER.find(None, {WORKER.variable(setting): text}, {})[setting.name]
    assert found.value == setting.default
    assert found.origin != "default"
