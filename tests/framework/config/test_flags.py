"""Every setting is a flag and a variable; tried with the settings of the broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from cyclopts import App, CycloptsError

from kmr.broker import BrokerSettings
from kmr.broker.settings import BROKER
from kmr.config.flags import Given, settings_flags
from kmr.errors import SettingsError


def settings(*arguments: str) -> BrokerSettings:
    """Return the settings that a command line means."""
    app = App()
    seen: list[BrokerSettings] = []

    @app.default
    @settings_flags(BROKER)
    def command(*, given: Given[BrokerSettings], other: str = "") -> int:
        del other
        seen.append(given.load())
        return 0

    app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    return seen[0]


def test_every_setting_has_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    App(default_command=settings_flags(BROKER)(lambda *, given: 0)).help_print([])
    shown = capsys.readouterr().out
    assert len(BROKER.settings) == len(BrokerSettings.__struct_fields__)
    for setting in BROKER.settings:
        assert f"--{setting.flag}"[:25] in shown


@pytest.mark.parametrize("flag", ["--partitions", "--message-max-bytes", "--host", "--fsync"])
def test_a_setting_that_must_have_a_value_is_not_set_to_none(flag: str) -> None:
    try:
        found = settings("--data", "d", flag, "none")
    except SettingsError:
        return
    name = {setting.flag: setting.name for setting in BROKER.settings}[flag[2:]]
    assert getattr(found, name) is not None  # a text may be "none"


def test_settings_that_are_not_given_have_their_defaults() -> None:
    assert settings("--data", "d") == BrokerSettings(data_dir=Path("d"))


def test_a_flag_for_each_kind_of_setting() -> None:
    given = settings(
        *("--data", "d", "--node-id", "1", "--port", "0", "--partitions", "4", "--fsync", "always"),
        *("--segment-bytes", "16MiB", "--retention-seconds", "7d", "--retention-bytes", "none"),
        *("--no-auto-create-topics", "--other", "x"),
    )
    assert given == BrokerSettings(
        data_dir=Path("d"),
        node_id=1,
        port=0,
        default_partitions=4,
        fsync="always",
        segment_bytes=16 * 1024**2,
        retention_seconds=7 * 86_400.0,
        retention_bytes=None,
        auto_create_topics=False,
    )


def test_no_limit_can_be_given_where_the_default_has_one() -> None:
    assert settings("--data", "d", "--retention-seconds", "none").retention_seconds is None


def test_settings_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KMR_BROKER__DATA_DIR", "/from/env")
    monkeypatch.setenv("KMR_BROKER__PORT", "1234")
    assert settings("--port", "5") == BrokerSettings(data_dir=Path("/from/env"), port=5)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--data", "d", "--segment-bytes", "much"],
        ["--data", "d", "--segment-bytes", "none"],
        ["--data", "d", "--fsync", "sometimes"],
        ["--data", "d", "--port", "x"],
        ["--data", "d", "--no-such-flag", "x"],
    ],
)
def test_wrong_values_are_refused(arguments: list[str]) -> None:
    with pytest.raises((CycloptsError, SettingsError)):
        settings(*arguments)


def test_the_help_shows_defaults_with_units(capsys: pytest.CaptureFixture[str]) -> None:
    app = App()
    app.default(settings_flags(BROKER)(lambda *, given: 0))
    app.help_print([])
    shown = " ".join(capsys.readouterr().out.split())
    for text in ("[default: 256MiB]", "[default: 7d]", "[default: none]", "--segment-bytes BYTES"):
        assert text in shown
