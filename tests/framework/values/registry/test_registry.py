"""The registry's client: authentication, retries, what it remembers, and its errors."""

from __future__ import annotations

import base64
import json
import pickle
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from anyio.to_thread import run_sync

from kmr import Avro, Registry
from kmr.errors import RegistryError
from kmr.values.registry.framing import prefix
from kmr.values.registry.registry import (
    RegisteredSchema,
    RegistryUnavailable,
    SchemaReference,
    UnknownSchema,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kmr.broker import Broker


class Scripted(HTTPServer):
    """Answers each request by the next of `answers`: a status and a body."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[tuple[int, Any]] = []
        self.requests: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Scripted

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers["Authorization"]))
        status, body = self.server.answers.pop(0)
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Print nothing."""


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    server = Scripted()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_schema_is_asked_for_once_in_each_process(scripted: Scripted) -> None:
    scripted.answers = [(200, {"schema": '"int"'})] * 2
    registry = Registry(f"{scripted.url}/")
    assert registry.by_id(3) == registry.by_id(3) == RegisteredSchema('"int"', id=3)
    assert scripted.requests == [("/schemas/ids/3", None)]
    assert pickle.loads(pickle.dumps(registry)).by_id(3).schema == '"int"'
    assert len(scripted.requests) == 2


def test_the_id_of_a_guid_is_that_of_the_default_context_and_is_asked_for_once(
    scripted: Scripted,
) -> None:
    guid = "89791762-2336-186f-9674-299b90a802e2"
    scripted.answers = [(200, [{"context": ":.east:", "id": 9}, {"context": ".", "id": 4}])]
    registry = Registry(scripted.url, retries=0)
    assert registry.id_of_guid(guid) == registry.id_of_guid(guid) == 4
    assert scripted.requests == [(f"/schemas/guids/{guid}/ids", None)]
    scripted.answers = [(404, {"error_code": 404, "message": "HTTP 404 Not Found"})]
    with pytest.raises(UnknownSchema):  # a registry without GUIDs: the value fails alone
        registry.id_of_guid("other")


@pytest.mark.parametrize(
    ("options", "header"),
    [
        ({"username": "ann", "password": "s:t"}, b"Basic " + base64.b64encode(b"ann:s:t")),
        ({"token": "abc"}, b"Bearer abc"),
    ],
)
def test_it_authenticates(scripted: Scripted, options: dict[str, str], header: bytes) -> None:
    scripted.answers = [(200, {"schema": '"int"'})]
    registry = Registry(scripted.url, **options)  # type: ignore[arg-type]
    registry.by_id(1)
    assert scripted.requests == [("/schemas/ids/1", header.decode())]
    assert not {*options.values()} - {"ann"} & {*repr(registry).split("'")}


def test_user_and_password_may_be_in_the_url(scripted: Scripted) -> None:
    scripted.answers = [(200, {"schema": '"int"'})]
    registry = Registry(scripted.url.replace("//", "//ann:p%40ss@"))
    registry.by_id(1)
    assert scripted.requests[0][1] == f"Basic {base64.b64encode(b'ann:p@ss').decode()}"
    assert "p@ss" not in repr(registry)
    assert "p%40ss" not in repr(registry)


def test_errors_of_the_server_are_retried_and_refusals_are_not(scripted: Scripted) -> None:
    registry = Registry(scripted.url)
    scripted.answers = [(503, {}), (200, {"schema": '"int"'})]
    assert registry.by_id(1).schema == '"int"'
    scripted.answers = [(500, {"error_code": 50001, "message": "store"})] * 2
    with pytest.raises(RegistryError, match=r"/schemas/ids/2 is refused \(500: store\)"):
        registry.by_id(2)
    scripted.answers = [(401, {"error_code": 401, "message": "no"})]
    with pytest.raises(RegistryError, match=r"401: no\); check the user and the password"):
        registry.by_id(3)
    assert len(scripted.requests) == 5


def test_one_thread_asks_whether_a_registry_is_back_and_the_others_hear_at_once_that_it_is_not(
    scripted: Scripted,
) -> None:
    registry = Registry(scripted.url, retries=7)
    scripted.answers = [(503, {})] * 2
    with pytest.raises(RegistryUnavailable):
        registry.by_id(1)
    assert len(scripted.requests) == 2
    with registry._local.lock, ThreadPoolExecutor(1) as others:  # another thread asks
        asked = others.submit(registry.by_id, 1)
        assert isinstance(asked.exception(60), RegistryUnavailable)
    scripted.answers = [(200, {"schema": '"int"'})]
    assert registry.by_id(1).schema == '"int"'
    assert registry._local.away is None


def test_the_latest_version_is_asked_for_as_often_as_the_user_says(scripted: Scripted) -> None:
    html, answer = (404, "<html>"), (200, {"schema": '"int"'})
    scripted.answers = [html, (200, "<html>"), html, answer]
    with pytest.raises(RegistryUnavailable):
        Registry(scripted.url, retries=2).by_version("hits")
    assert Registry(scripted.url, retries=2).by_version("hits").schema == '"int"'


def test_an_unknown_id_is_remembered_for_a_while(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(scripted.url)
    unknown = 404, {"error_code": 40403, "message": "Schema 7 not found"}
    scripted.answers = [unknown]
    for _ in range(2):
        with pytest.raises(UnknownSchema, match="Schema 7 not found"):
            registry.by_id(7)
    monkeypatch.setattr("kmr.values.registry.registry._FORGET_UNKNOWN", -1.0)
    other = Registry(scripted.url)
    scripted.answers = [unknown, (200, {"schema": '"int"'})]
    with pytest.raises(UnknownSchema):
        other.by_id(7)
    assert other.by_id(7).id == 7


def test_unknown_ids_are_forgotten_when_there_are_many(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kmr.values.registry.registry._FORGET_UNKNOWN", -1.0)
    monkeypatch.setattr("kmr.values.registry.registry._MOST_UNKNOWN", 3)
    registry = Registry(scripted.url)
    scripted.answers = [(404, {"error_code": 40403, "message": "not found"})] * 10
    for number in range(10):
        with pytest.raises(UnknownSchema):
            registry.by_id(number)
    assert len(registry._local.unknown) <= 3


def test_known_schemas_are_read_while_the_registry_does_not_answer_and_a_new_one_raises(
    scripted: Scripted,
) -> None:
    format_ = Avro("int", registry=Registry(scripted.url, retries=0))
    scripted.answers = [(200, {"schema": '"int"'})]
    known, new = prefix(1) + b"\2", prefix(2) + b"\4"
    for _ in range(2):
        assert format_.decode(pa.array([known], pa.binary())).columns.to_pylist() == [{"value": 1}]
    both = pa.array([known, new], pa.binary())
    scripted.answers = [(503, {})]
    with pytest.raises(RegistryError):
        format_.decode(both)
    scripted.answers = [(200, {"schema": '"int"'})]
    columns, failures = format_.decode(both)
    assert (columns.to_pylist(), failures) == ([{"value": 1}, {"value": 2}], {})


def test_a_schema_whose_reference_is_unknown_fails_its_values_alone_until_the_registry_has_it(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    record = {"type": "record", "name": "R", "fields": [{"name": "at", "type": "acme.At"}]}
    at = {"type": "record", "name": "acme.At", "fields": [{"name": "n", "type": "int"}]}
    same = [{"name": name, "subject": "at", "version": 1} for name in ("acme.At", "At")]
    scripted.answers = [
        (200, {"schema": '"int"'}),
        (200, {"schema": json.dumps(record), "references": same}),
        (404, {"error_code": 40401, "message": "Subject 'at' not found"}),
    ]
    format_ = Avro({**record, "fields": [{"name": "at", "type": at}]}, registry=scripted.url)
    values = pa.array([prefix(7) + b"\x0a", prefix(8) + b"\x0a"], pa.binary())
    for _ in range(2):
        columns, failures = format_.decode(values)
        assert failures[1].startswith("schema 8 is unknown: ")
        assert "Subject 'at' not found" in failures[1]
        assert failures[0].startswith("schema 7: ")
    now += 31
    scripted.answers = [(200, {"schema": json.dumps(at)})]
    columns, failures = format_.decode(values)
    assert list(failures) == [0]
    assert columns.to_pylist()[1] == {"at": {"n": 5}}
    assert len(scripted.requests) == 4


@pytest.mark.parametrize(
    "answer",
    [
        (404, "<html>Not Found</html>"),
        (404, {"detail": "Not Found"}),
        (404, {"error_code": 404, "message": "HTTP 404 Not Found"}),
        (405, ""),
        (200, ["hello"]),
        (200, "<html>sign in</html>"),
    ],
)
def test_the_answer_of_another_server_is_no_answer_of_the_registry(
    scripted: Scripted, answer: tuple[int, Any]
) -> None:
    registry = Registry(scripted.url)
    scripted.answers = [answer] * 2
    with pytest.raises(RegistryUnavailable, match=r"is the path of the registry's URL right\?$"):
        registry.by_id(1)
    scripted.answers = [answer, (200, {"schema": '"int"'})]
    assert registry.by_id(1).schema == '"int"'


def test_no_answer_and_wrong_addresses_are_said_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # it does not listen
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(
            RegistryError,
            match=rf"registry {url}: no answer \([^()]*refused\); does it run, and is the address right",
        ):
            Registry(url, retries=0).by_id(1)
    with pytest.raises(
        RegistryError, match=r"'localhost:8081': not an URL; write http://host:8081"
    ):
        Registry("localhost:8081")
    with pytest.raises(RegistryError, match="TLS files cannot be read"):
        Registry("https://localhost:1", ca_file="/nowhere.pem").by_id(1)


async def test_schemas_are_registered_once_and_found_by_version_with_their_references(
    broker: Broker,
    registry_url: str,
) -> None:
    def work() -> None:
        registry = Registry(registry_url)
        inner = RegisteredSchema('{"type":"record","name":"a.In","fields":[]}')
        number = registry.register("in/side", inner)
        assert registry.register("in/side", inner) == number
        outer = RegisteredSchema(
            '{"type":"array","items":"a.In"}', references=(SchemaReference("a.In", "in/side", 1),)
        )
        assert registry.register("out", outer) != number
        latest = registry.by_version("out")
        assert latest.references == outer.references
        assert [*registry.references(latest)] == ["a.In"]
        with pytest.raises(UnknownSchema, match=r"nothing.*; check the subject's name, or"):
            registry.by_version("nothing")
        with pytest.raises(RegistryError, match="is refused"):
            registry.register("out", RegisteredSchema("{"))
        with pytest.raises(RegistryError, match=r"\(409: .*or change the subject's compatibility"):
            registry.register("out", RegisteredSchema('"int"'))

    await run_sync(work)
