"""Jars come from the repository once, and never unverified."""

from __future__ import annotations

import socket
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from interop import kafka, maven
from interop.lock import LOCK
from interop.maven import REPOSITORY_VARIABLE, Artifact, FetchFailed, fetch, read_lock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONTENT = b"PK of a jar"
ARTIFACT = Artifact("org.example.some", "thing", "1.0", sha256(CONTENT).hexdigest())


class Repository(ThreadingHTTPServer):
    """Serves `files` by path; `asked` are the paths of all requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.broken = 0  # requests that are answered with 503 first
        self.asked: list[str] = []

    @property
    def environ(self) -> dict[str, str]:
        return {REPOSITORY_VARIABLE: f"http://127.0.0.1:{self.server_port}/maven2/"}


class _Handler(BaseHTTPRequestHandler):
    server: Repository

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        content = self.server.files.get(self.path)
        if self.server.broken:
            self.server.broken -= 1
            self.send_error(503)
        elif content is None:
            self.send_error(404)
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its signature
        pass


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    monkeypatch.setattr(maven, "_PAUSE", 0.0)
    with Repository() as server:
        server.files["/maven2/org/example/some/thing/1.0/thing-1.0.jar"] = CONTENT
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a port that refuses connections."""
    monkeypatch.setattr(maven, "_PAUSE", 0.0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_a_jar_is_fetched_once_and_then_taken_from_the_cache(
    repository: Repository, tmp_path: Path
) -> None:
    for _ in range(2):
        (jar,) = fetch([ARTIFACT], tmp_path, repository.environ)
        assert jar.read_bytes() == CONTENT
    assert repository.asked == ["/maven2/org/example/some/thing/1.0/thing-1.0.jar"]


def test_a_jar_that_was_damaged_in_the_cache_is_fetched_again(
    repository: Repository, tmp_path: Path
) -> None:
    (jar,) = fetch([ARTIFACT], tmp_path, repository.environ)
    jar.write_bytes(CONTENT[:-1])
    (jar,) = fetch([ARTIFACT], tmp_path, repository.environ)
    assert jar.read_bytes() == CONTENT


def test_other_bytes_than_the_lock_names_are_refused_and_not_kept(
    repository: Repository, tmp_path: Path
) -> None:
    repository.files = dict.fromkeys(repository.files, b"something else")
    with pytest.raises(FetchFailed, match=r"thing-1\.0\.jar: sha256 .* differs from the lock file"):
        fetch([ARTIFACT], tmp_path, repository.environ)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_repository_that_is_busy_is_asked_again(repository: Repository, tmp_path: Path) -> None:
    repository.broken = 2
    (jar,) = fetch([ARTIFACT], tmp_path, repository.environ)
    assert jar.read_bytes() == CONTENT


def test_a_jar_that_the_repository_does_not_have_is_named(
    repository: Repository, tmp_path: Path
) -> None:
    repository.files.clear()
    with pytest.raises(FetchFailed, match=r"/thing-1\.0\.jar: HTTP 404"):
        fetch([ARTIFACT], tmp_path, repository.environ)
    assert len(repository.asked) == 1


def test_a_repository_out_of_reach_is_named_with_the_way_out(nowhere: str, tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match=r"cannot be reached: .*refused.* KMR_MAVEN_REPOSITORY"):
        fetch([ARTIFACT], tmp_path, {REPOSITORY_VARIABLE: nowhere})


def test_without_maven_central_the_run_says_so_and_exits_with_3(
    nowhere: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(REPOSITORY_VARIABLE, nowhere)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert kafka.main(["--output", str(tmp_path / "output")]) == 3
    printed = capsys.readouterr().out
    assert "Apache Kafka cannot be started" in printed
    assert "cannot be reached" in printed


def test_the_lock_file_names_every_jar_once_and_one_release_of_kafka() -> None:
    artifacts = read_lock(LOCK)
    assert len({(each.group, each.name) for each in artifacts}) == len(artifacts)
    assert [Artifact.parse(str(each)) for each in artifacts] == artifacts
    ours = [each for each in artifacts if each.group == "org.apache.kafka"]
    assert {"kafka_2.13", "kafka-clients"} <= {each.name for each in ours}
    assert len({each.version for each in ours}) == 1


@pytest.mark.parametrize("line", ["", "a:b:1", "a:b:1 sha256:12", "a:b sha256:" + 64 * "0"])
def test_a_line_that_is_no_artifact_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not `group:name:version sha256:"):
        Artifact.parse(line)
