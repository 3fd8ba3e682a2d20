"""Output and exit code of a run follow from its checks."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from interop.checks import CheckFailed, Checks


async def passing() -> str:
    return "seen [as it is]"


async def failing(reason: str) -> str:
    raise CheckFailed(reason)


async def breaking() -> str:
    raise TimeoutError


def checks() -> tuple[Checks, StringIO]:
    output = StringIO()
    return Checks(Console(file=output, width=200)), output


async def test_every_check_is_run_also_after_one_that_failed() -> None:
    run, output = checks()
    await run.run("one node", "first", failing, "3 rows, not 4")
    await run.run("one node", "second", passing)
    assert [check.passed for check in run.results] == [False, True]
    assert not run.passed
    assert "3 rows, not 4" in output.getvalue()


async def test_an_unexpected_error_is_a_failed_check_that_names_it() -> None:
    run, _ = checks()
    await run.run("one node", "first", breaking)
    (check,) = run.results
    assert not check.passed
    assert check.detail.startswith("TimeoutError")


async def test_a_run_passes_if_there_were_checks_and_all_of_them_passed() -> None:
    run, _ = checks()
    assert not run.passed
    await run.run("one node", "first", passing)
    assert run.passed


async def test_the_table_shows_observations_verbatim() -> None:
    run, _ = checks()
    await run.run("one node", "first", passing)
    await run.run("one node", "second", failing, "a reason\nwith a log")
    shown = Console(file=StringIO(), width=200)
    with shown.capture() as captured:
        shown.print(run.table("results"))
    assert "seen [as it is]" in captured.get()
    assert "a reason ..." in captured.get()
