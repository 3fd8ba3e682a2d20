"""A new project works as it comes."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from kmr.cli.new import new
from kmr.errors import SettingsError
from kmr.loading import load_strategy
from kmr.settings import WORKER
from kmr.sinks import ClickHouseWriter


def test_the_tests_of_a_new_project_pass(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new(Path("fruit-sales"))
    monkeypatch.chdir("fruit-sales")
    monkeypatch.syspath_prepend(".")
    tests = importlib.import_module("test_strategy")
    ours = [value for name, value in vars(tests).items() if name.startswith("test_")]
    assert len(ours) == 2
    for each in ours:
        each()


def test_a_new_project_has_a_strategy_settings_and_commands_of_its_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    new(Path("fruit-sales"))
    assert "cd fruit-sales && make test" in capsys.readouterr().out
    settings = WORKER.load(Path("fruit-sales/kmr.toml"), {}, {})
    assert (settings.topics, settings.group) == (("fruit-sales",), "fruit-sales")
    monkeypatch.chdir("fruit-sales")
    strategy = load_strategy(settings.strategy or "")
    strategy.validate()
    (writer,) = strategy.reducers
    assert isinstance(writer, ClickHouseWriter)
    assert writer.table == "fruit_sales"
    makefile = Path("Makefile").read_text()
    assert "FROM fruit_sales GROUP BY" in makefile
    dockerfile = Path("Dockerfile").read_text()
    assert dockerfile.endswith("FROM kmr\nCOPY strategy.py kmr.toml ./\n")
    assert not re.search("TOPIC|TABLE", makefile + dockerfile)


def test_a_folder_with_files_and_a_name_that_no_topic_has_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(SettingsError, match="mine: cannot be written"):
        new(tmp_path / "mine")
    with pytest.raises(SettingsError, match="is not empty: name a new folder"):
        new(tmp_path)
    with pytest.raises(SettingsError, match="begin with a letter"):
        new(tmp_path / "7 days")
