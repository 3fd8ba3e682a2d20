"""Every setting of the broker is a flag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from cyclopts import App, CycloptsError

from broker import BrokerSettings
from broker.cli.flags import HELP, with_settings


def settings(*arguments: str) -> dict[str, Any]:
    """The settings that a command line means."""
    app = App()
    seen: list[dict[str, Any]] = []

    @app.default
    @with_settings
    def command(*, settings: dict[str, Any], other: str = "") -> int:
        del other
        seen.append(settings)
        return 0

    app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    return seen[0]


def test_every_setting_has_a_flag_and_is_explained() -> None:
    explained = [name for names in HELP.values() for name in names]
    assert sorted(explained) == sorted(BrokerSettings.__struct_fields__)


@pytest.mark.parametrize("flag", ["--partitions", "--message-max-bytes", "--host", "--fsync"])
def test_a_setting_that_must_have_a_value_is_not_set_to_none(flag: str) -> None:
    try:
        found = settings("--data", "d", flag, "none")
    except CycloptsError:
        return
    assert None not in found.values()  # a text may be "none"


def test_only_what_was_given_is_set() -> None:
    assert settings("--data", "d") == {"data_dir": Path("d")}


def test_a_flag_for_each_kind_of_setting() -> None:
    given = settings(
        *("--data", "d", "--node-id", "1", "--port", "0", "--partitions", "4", "--fsync", "always"),
        *("--segment-bytes", "16MiB", "--retention-seconds", "7d", "--retention-bytes", "none"),
        *("--no-auto-create-topics", "--other", "x"),
    )
    assert BrokerSettings(**given) == BrokerSettings(
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
    assert settings("--data", "d", "--retention-seconds", "none")["retention_seconds"] is None


def test_settings_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KMR_BROKER__DATA_DIR", "/from/env")
    monkeypatch.setenv("KMR_BROKER__PORT", "1234")
    assert settings("--port", "5") == {"data_dir": Path("/from/env"), "port": 5}


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
def test_what_makes_no_sense_is_refused(arguments: list[str]) -> None:
    with pytest.raises(CycloptsError):
        settings(*arguments)


def test_the_help_shows_defaults_with_units(capsys: pytest.CaptureFixture[str]) -> None:
    app = App()
    app.default(with_settings(lambda *, settings: 0))
    app.help_print([])
    shown = " ".join(capsys.readouterr().out.split())
    for text in ("[default: 256MiB]", "[default: 7d]", "[default: none]", "--segment-bytes BYTES"):
        assert text in shown
    assert len(msgspec.structs.fields(BrokerSettings)) > 20
