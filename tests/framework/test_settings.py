"""Settings: where a value comes from, what is allowed, and what a person is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.config.schema import settings_of
from framework.config.units import BYTES, SECONDS, read_quantity
from framework.errors import SettingsError
from framework.settings import SecuritySettings, Settings, find_settings

if TYPE_CHECKING:
    from pathlib import Path

MINIMAL = {"topics": ("flights",), "group": "g"}


def write(folder: Path, text: str) -> Path:
    config = folder / "kmr.toml"
    config.write_text(text, encoding="utf-8")
    return config


def refusal(**layers: object) -> str:
    with pytest.raises(SettingsError) as error:
        Settings.load(**layers)  # type: ignore[arg-type]
    return str(error.value)


def test_each_layer_goes_before_the_one_below_it(tmp_path: Path) -> None:
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
    assert settings.fetch.max_partition_bytes == 1024 * 1024
    assert settings.http.port == 8080
    assert settings.session_timeout == 30.0


def test_the_origin_of_every_value_is_known(tmp_path: Path) -> None:
    config = write(tmp_path, '[kmr]\ngroup = "g"\n[kmr.log]\nlevel = "debug"')
    found = find_settings(config, {"KMR_TOPICS": "a, b"}, {"session_timeout": "45s"})
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
                "inflight_bytes must be bytes, a whole number > 0, or with a unit as in 16MiB, "
                "not 'lots' (from flag --inflight-bytes)"
            ),
        ),
        ({"queue_batches": 0}, "queue_batches must be a whole number > 0, not 0"),
        ({"http.port": 70_000}, "http.port must be a whole number >= 0 and <= 65535 or 'none'"),
        (
            {"security.ssl_check_hostname": "maybe"},
            "security.ssl_check_hostname must be true or false, not 'maybe'",
        ),
        ({"topics": []}, "topics must be a list of texts, not [] (from flag --topic)"),
    ],
)
def test_a_wrong_value_is_named_with_its_origin_and_what_is_allowed(
    flags: dict[str, object], message: str
) -> None:
    assert message in refusal(flags=MINIMAL | flags)


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
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


def test_a_slip_in_a_variable_is_refused_but_variables_of_others_are_left_alone() -> None:
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
        "or write topics under [kmr] in the TOML file"
    )


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
        ({"fetch.max_bytes": "1kB"}, "fetch.max_partition_bytes (1048576) must not be above"),
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


def test_every_setting_has_a_description_and_a_flag_of_its_own() -> None:
    settings = settings_of(Settings)
    assert all(setting.description for setting in settings)
    assert len({setting.flag for setting in settings}) == len(settings)
    assert [setting.name for setting in settings if setting.secret] == ["security.sasl_password"]


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("16MiB", BYTES, 16 * 1024 * 1024),
        ("1.5 KiB", BYTES, 1536),
        ("2MB", BYTES, 2_000_000),
        ("10k", BYTES, 10_000),
        ("1_000 B", BYTES, 1000),
        ("500ms", SECONDS, 0.5),
        ("2 min", SECONDS, 120.0),
        ("1h", SECONDS, 3600.0),
        ("7", SECONDS, "7"),
        ("5 parsec", SECONDS, "5 parsec"),
        ("-1s", SECONDS, "-1s"),
    ],
)
def test_a_quantity_is_read_with_its_unit(text: str, unit: str, value: object) -> None:
    assert read_quantity(text, unit) == value


@given(st.integers(1, 2**40))
def test_bytes_written_in_kibibytes_are_exact(kibibytes: int) -> None:
    assert read_quantity(f"{kibibytes}KiB", BYTES) == kibibytes * 1024


@given(st.data())
def test_every_default_survives_the_trip_through_environment_variables(data: st.DataObject) -> None:
    setting = data.draw(st.sampled_from([s for s in settings_of(Settings) if not s.required]))
    text = "none" if setting.default is None else str(setting.default)
    found = find_settings(None, {setting.variable("kmr"): text})[setting.name]
    assert found.value == setting.default
    assert found.origin != "default"


def test_settings_are_immutable_and_refuse_unknown_names() -> None:
    settings = Settings(topics=("t",), group="g")
    with pytest.raises(AttributeError):
        settings.group = "h"  # type: ignore[misc]
    with pytest.raises(TypeError):
        Settings(topics=("t",), group="g", colour="red")  # type: ignore[call-arg]
    assert msgspec.structs.replace(settings, group="h").group == "h"
