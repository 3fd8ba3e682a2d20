"""Parsing the Java program's output, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from interop.suites import java
from interop.suites.contract import SuiteNotRun
from interop.suites.java import Java, outcome

if TYPE_CHECKING:
    from pathlib import Path


def test_checks_pass_or_fail_with_a_reason_and_other_lines_are_noise() -> None:
    found = outcome("SLF4J: noise\nok one, two\nFAILED three: it is 4: not 3\n  at Site.java\n")
    assert found.passed == ["one, two"]
    assert found.failed == {"three": "it is 4: not 3"}


async def test_a_runtime_without_a_compiler_is_not_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "jre"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch()
    (home / "release").write_text('JAVA_VERSION="21.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setattr(java, "fetch", lambda *_: [])
    with pytest.raises(SuiteNotRun, match=r"there is no .*javac"):
        await Java().run("127.0.0.1:9", tmp_path)
