"""Loading a strategy: errors name the module, the file and the line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kmr.errors import KmrError, SettingsError, StrategyError
from kmr.loading import load_strategy, strategy_of
from kmr.settings import Settings
from tests.framework.cli.conftest import folder  # noqa: F401  a fixture

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("flow:stratgy", "module flow has no attribute stratgy; did you mean flow:strategy?"),
        ("flow:parse", "flow:parse is of type function, not a Strategy; did you mean flow:bare?"),
        ("flow.py:bare", "flow.py:bare is a file; give the module instead: flow:bare"),
        ("absent.deeper:x", "there is no module absent, neither in "),
        ("flow.deeper:x", "there is no module flow.deeper, neither in "),
        (
            "lacking",
            (
                "cannot import lacking: No module named 'absent_library' (in {folder}/lacking.py, "
                "line 2: import absent_library)"
            ),
        ),
        (
            "failing",
            (
                "cannot import failing: ZeroDivisionError: division by zero (in {folder}/failing.py, "
                "line 2: return 1 / 0)"
            ),
        ),
        (
            "garbled",
            "cannot import garbled: '(' was never closed (in {folder}/garbled.py, line 1: f()",
        ),
        (
            "senseless",
            (
                "reduce= is empty: a strategy needs at least one reducer (in {folder}/senseless.py, "
                "line 3: strategy = Strategy(map=passed, reduce=[]))"
            ),
        ),
        (
            "addressless",
            (
                "registry 'localhost:8081': not an URL; write http://host:8081 (in {folder}/addressless.py, "
                "line 2: hits = Registry('localhost:8081'))"
            ),
        ),
    ],
)
def test_a_mistake_in_the_module_is_reported_with_file_and_line(
    folder: Path,  # noqa: F811
    path: str,
    message: str,
) -> None:
    modules = {
        "lacking": "x = 1\nimport absent_library\n",
        "failing": "def half():\n    return 1 / 0\nhalf()\n",
        "garbled": "f(\n",
        "senseless": (
            "from flow import passed\nfrom kmr.strategy import Strategy\n"
            "strategy = Strategy(map=passed, reduce=[])\n"
        ),
        "addressless": "from kmr import Registry\nhits = Registry('localhost:8081')\n",
    }
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    with pytest.raises(KmrError) as error:
        load_strategy(path)
    assert str(error.value).startswith(message.format(folder=folder))
    # A wrong name is a wrong command line, which ends with 2; a broken module ends with 1.
    assert isinstance(error.value, SettingsError) == (path not in modules)


def test_a_strategy_of_settings_is_named_checked_and_reads_no_topic_that_it_writes(
    folder: Path,  # noqa: F811
) -> None:
    with pytest.raises(SettingsError, match="give it as in `kmr doctor module:strategy`"):
        strategy_of(Settings(topics=("t",), group="g"), "doctor")
    (folder / "looping.py").write_text(
        "from kmr import Strategy\nfrom kmr.sinks import KafkaWriter\n"
        "strategy = Strategy(map=lambda record: None, reduce=KafkaWriter('t'))\n",
        encoding="utf-8",
    )
    settings = Settings(topics=("t",), group="g", strategy="looping")
    with pytest.raises(StrategyError, match="topic t"):
        strategy_of(settings, "run")
    other = Settings(topics=("other",), group="g", strategy="looping")
    assert strategy_of(other, "run").map is not None


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("from kmr import ClickHouseWriter", "; it is in kmr.sinks (in "),
        ("from kmr.sinks import Strategy", "; it is in kmr (in "),
        ("from kmr.sinks import ClickhouseWriter", "; did you mean ClickHouseWriter? (in "),
        ("from kmr import Strateg", "; did you mean Strategy? (in "),
    ],
)
def test_a_name_that_a_module_of_ours_lacks_is_found_elsewhere(
    folder: Path,  # noqa: F811
    line: str,
    hint: str,
) -> None:
    (folder / "misnamed.py").write_text(f"{line}\n", encoding="utf-8")
    with pytest.raises(StrategyError) as error:
        load_strategy("misnamed:strategy")
    assert hint in str(error.value)
