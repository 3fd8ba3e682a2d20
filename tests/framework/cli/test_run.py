"""`kmr run`: its settings and flags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kmr.cli.run import run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_run_names_every_setting_that_is_missing(kmr: Callable[..., Any], folder: Path) -> None:
    output = kmr("run", "flow")
    assert output.code == 2
    assert output.err.splitlines()[0].startswith("kmr: topics is not set: give --topic")
    assert output.err.splitlines()[1].startswith("group is not set: give --group")


def test_run_without_strategy_says_how_to_name_one(kmr: Callable[..., Any], folder: Path) -> None:
    output = kmr("run", "--topic", "t", "--group", "g")
    assert output.code == 2
    assert output.err.startswith(
        "kmr: strategy is not set: give it as in `kmr run module:strategy`"
    )


def test_a_wrong_flag_is_explained_like_any_other_setting(
    kmr: Callable[..., Any], folder: Path
) -> None:
    output = kmr("run", "flow", "--topic", "t", "--group", "g", "--fetch-max-bytes", "lots")
    assert output.code == 2
    assert output.err == (
        "kmr: fetch.max_bytes must be bytes, a whole number > 0, or with a unit as in 16MiB, "
        "not 'lots' (from flag --fetch-max-bytes)\n"
    )


def test_all_of_the_help_of_run_has_a_flag_for_every_setting(kmr: Callable[..., Any]) -> None:
    text = kmr("run", "--help-all").out
    for flag in (
        "--topic",
        "--group",
        "--fetch-max-bytes",
        "--http-port",
        "--log-level",
        "--config",
    ):
        assert f" {flag} " in text


def test_run_is_documented() -> None:
    assert run.__doc__ is not None
    assert "Exit codes" in run.__doc__


def test_flags_of_spark_need_the_engine_and_a_checkpoint(
    kmr: Callable[..., Any], folder: Path
) -> None:
    given = ("run", "flow", "--topic", "t", "--group", "g")
    assert kmr(*given, "--checkpoint", "c").err == "kmr: --checkpoint needs --engine spark\n"
    assert "needs --checkpoint" in kmr(*given, "--engine", "spark", "--master", "local").err
    wrong = kmr(*given, "--engine", "spark", "--checkpoint", "c", "--spark-conf", "a")
    assert wrong.err == "kmr: --spark-conf must be name=value, not 'a'\n"


@pytest.mark.parametrize("engine", ["worker", "spark"])
def test_a_sink_that_writes_to_the_input_topic_is_refused(
    kmr: Callable[..., Any], folder: Path, engine: str
) -> None:
    flags = ["--engine", engine, *(["--checkpoint", "at"] if engine == "spark" else [])]
    output = kmr("run", "flow:loop", "--topic", "orders", "--group", "g", *flags)
    assert output.code == 1
    assert "reduce-1: KafkaWriter writes to topic orders, which is an input" in output.err


def test_the_spark_engine_refuses_workers(kmr: Callable[..., Any], folder: Path) -> None:
    flags = ("--engine", "spark", "--checkpoint", "c", "--workers", "2")
    output = kmr("run", "flow", "--topic", "t", "--group", "g", *flags)
    assert output.code == 2
    assert output.err.startswith("kmr: workers: 2 does not fit --engine spark")
