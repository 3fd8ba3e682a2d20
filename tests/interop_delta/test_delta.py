"""`python -m interop.delta`: what it fetches, and what it says where it cannot."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from interop import delta
from interop.maven import REPOSITORY_VARIABLE, read_lock

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_jars_are_those_of_the_spark_that_is_installed_for_them() -> None:
    jars = {each.name: each for each in read_lock(delta.LOCK)}
    assert set(jars) == {f"delta-spark_{delta.PYSPARK.rpartition('.')[0]}_2.13", "delta-storage"}
    assert len({each.version for each in jars.values()}) == 1


def test_a_repository_that_is_out_of_reach_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nothing listens
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv(REPOSITORY_VARIABLE, address)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr("interop.maven._PAUSE", 0.0)
        assert delta.main(["--only", "tables"]) == 3
    printed = capsys.readouterr().out
    assert "Delta cannot be started" in printed
    assert REPOSITORY_VARIABLE in printed
