"""The rule of a soak, on series with and without a leak."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from chaos.__main__ import main
from chaos.growth import FIGURES, check_growth, growth_of
from chaos.history import History
from chaos.soak import plot, soak

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 2**20
STEADY = {"rss": 200.0 * MIB, "descriptors": 30.0, "threads": 8.0, "tasks": 25.0}


def is_leak(figure: str, minutes: float, value: Callable[[float], float]) -> bool:
    times = np.arange(0, minutes * 60, minutes * 60 / 720)
    found = growth_of("worker", figure, times, np.array([value(second) for second in times]))
    assert found is not None
    return found.is_leak


def noise(figure: str) -> Callable[[float], float]:
    """A worker without a leak: noise, and a peak of 12 s at each rebalance, one a minute."""
    random = Random(7)
    typical = STEADY[figure]

    def value(second: float) -> float:
        peak = 0.3 * typical if second % 60 < 12 else 0
        return round(typical + peak + random.gauss(0, 0.01 * typical))

    return value


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("minutes", [6, 30, 240])
def test_noise_and_the_peaks_of_rebalances_are_no_leak(figure: str, minutes: float) -> None:
    assert not is_leak(figure, minutes, noise(figure))


def test_caches_that_fill_in_the_first_half_are_no_leak() -> None:
    assert not is_leak(
        "rss", 30, lambda second: STEADY["rss"] + 80 * MIB * (1 - np.exp(-second / 180))
    )


def test_memory_that_is_given_back_is_no_leak() -> None:
    assert not is_leak("rss", 30, lambda second: STEADY["rss"] - MIB * second / 60)


@pytest.mark.parametrize("figure", ["descriptors", "threads", "tasks"])
@pytest.mark.parametrize("minutes", [6, 30])
def test_one_of_each_rebalance_that_stays_is_a_leak(figure: str, minutes: float) -> None:
    steady = noise(figure)
    assert is_leak(figure, minutes, lambda second: steady(second) + second // 60)


def test_a_kibibyte_of_each_batch_that_stays_is_a_leak() -> None:
    steady = noise("rss")
    assert is_leak("rss", 30, lambda second: steady(second) + 10 * 1024 * second)


def test_a_leak_behind_peaks_and_wrong_samples_is_found() -> None:
    random = Random(11)

    def value(second: float) -> float:
        wrong = random.random() < 0.2
        return 0 if wrong else STEADY["rss"] + MIB * second / 60

    assert is_leak("rss", 30, value)


def history_of(samples: int, leaks: dict[str, str]) -> History:
    lines: list[dict[str, Any]] = []
    for process in ("broker", "clickhouse", "group-1"):
        for at in range(samples):
            held = {name: int(value) for name, value in STEADY.items()}
            if (figure := leaks.get(process)) is not None:
                held[figure] = int(held[figure] * (1 + at / samples))
            lines.append({"process": process, "time": at * 10**10, "pss": held["rss"] // 2, **held})
    return History.of({"resources": lines})


def test_the_process_and_the_figure_that_grow_are_named() -> None:
    found = check_growth(history_of(100, {"group-1": "descriptors", "clickhouse": "rss"}))
    assert found.verdict == "violated"
    assert found.count == 1
    assert found.detail.startswith("group-1: +14.7 descriptors in 490 s, typically 52")


def test_a_soak_in_which_nothing_grows_is_ok_and_one_that_was_too_short_is_unknown() -> None:
    assert check_growth(history_of(100, {})).verdict == "ok"
    assert check_growth(history_of(30, {})).verdict == "unknown"
    assert check_growth(History.of({})).verdict == "unknown"


def test_the_plot_has_a_line_for_each_process_and_figure() -> None:
    root = ET.fromstring(plot(history_of(100, {}), "a < b"))
    texts = [element.text for element in root.iter() if element.text]
    assert {"a < b", "threads", "tasks of the event loop", "clickhouse"} <= set(texts)
    lines = [element for element in root.iter() if element.tag.endswith("polyline")]
    assert len(lines) == 3 * 5


@pytest.mark.parametrize(("given", "complaint"), [("5s", "30 s or more"), ("long", "'long'")])
def test_a_soak_that_cannot_be_judged_is_refused(
    given: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--soak", given])
    assert end.value.code == 2
    assert complaint in capsys.readouterr().err


def test_a_soak_has_a_rebalance_at_least_every_minute_and_can_be_repeated() -> None:
    scenario = soak(1_800)
    assert scenario.between / scenario.shape.rate <= 60
    assert scenario.rounds >= 30
    assert scenario.arguments == "--soak 1800s"
