"""The outcome of one element of a request, and names that a request lists twice."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from kmr.broker import apis
from kmr.broker.apis.api import ElementResult, attempt, check_listed_once, result_or_refusal
from kmr.broker.apis.catalogue import SERVED
from kmr.broker.errors import RequestError
from kmr.broker.log.results import LogFailed


async def fail_with(error: Exception) -> None:
    raise error


async def succeed() -> str:
    return "a result"


async def test_a_refused_element_has_the_code_and_message_of_its_refusal() -> None:
    error = RequestError(ErrorCode.invalid_config, "too small")
    assert await attempt(fail_with(error), "failed") == ElementResult(error.code, "too small")


async def test_an_element_that_succeeds_has_no_error() -> None:
    assert await attempt(succeed(), "failed") == ElementResult(ErrorCode.none, None)


@pytest.mark.parametrize("error", [OSError("no space"), LogFailed("sync failed")])
async def test_a_failing_disk_is_logged_and_the_client_gets_a_storage_error(
    error: Exception,
) -> None:
    with capture_logs() as logs:
        outcome = await attempt(fail_with(error), "a topic could not be created", topic="t")
    assert outcome.code is ErrorCode.kafka_storage_error
    assert str(error) not in str(outcome.message)  # the reason is for the operator
    (line,) = logs
    assert (line["event"], line["topic"], line["error"]) == (
        "a topic could not be created",
        "t",
        str(error),
    )


async def test_a_bug_is_not_an_outcome() -> None:
    with pytest.raises(ZeroDivisionError):
        await attempt(fail_with(ZeroDivisionError()), "failed")


def test_a_refused_call_has_the_code_and_message_of_its_refusal() -> None:
    assert result_or_refusal(int, "7") == 7
    refused = result_or_refusal(check_listed_once, "b", Counter("bb"))
    assert isinstance(refused, ElementResult)
    assert refused.code is ErrorCode.invalid_request


def test_a_name_listed_twice_is_refused_by_name() -> None:
    times = Counter(["a", "b", "b"])
    check_listed_once("a", times)
    with pytest.raises(RequestError, match=r"'b' is listed 2 times") as refused:
        check_listed_once("b", times)
    assert refused.value.code is ErrorCode.invalid_request


def test_request_and_response_of_an_api_have_the_same_key_and_version() -> None:
    for api in SERVED:
        request, response = api.request, api.response
        assert (request.__api_key__, request.__version__) == (
            response.__api_key__,
            response.__version__,
        )


def test_the_apis_import_nothing_of_the_server_and_of_operations_not_even_types() -> None:
    package = Path(apis.__file__ or "").parent
    found = {
        (path.name, node.module)
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and node.level
        and (node.module or "").split(".")[0] in ("server", "operations", "cli", "broker")
    }
    assert found == set()
