"""The picture of a run: records produced and delivered, lag, and the times of faults."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

import numpy as np

from chaos.history import where

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from chaos.history import History

_WIDTH: Final = 1_000
_LEFT: Final = 136
_RIGHT: Final = 14
_PANEL: Final = 130
_GAP: Final = 46
_ROW: Final = 15
_BINS: Final = 240
COLOURS: Final = ("#2f6fb3", "#3a9a5b", "#b3832f", "#8a4fb3")
_FAULT: Final = "#c0392b"
_STYLE: Final = (
    "text{font:11px system-ui,sans-serif;fill:#333}.axis{stroke:#bbb}.grid{stroke:#eee}"
    ".title{font-weight:600}.muted{fill:#777}"
)


@dataclass(frozen=True)
class Line:
    """One line of a diagram: values at equal distances over the whole time."""

    name: str
    colour: str
    values: NDArray[np.float64]


def timeline(history: History, title: str) -> str:
    """The run as an SVG: throughput, lag, faults and recoveries, and the processes' lives."""
    begin, end = _span(history)
    edges = np.linspace(begin, end, _BINS + 1)
    seconds = (end - begin) / 1e9 / _BINS
    acked = np.sort(_times(where(history.produced, "outcome", "acked")))
    groups = sorted(
        {str(g) for table in (history.rows, history.dead) for g in table["group"].to_pylist()}
    )
    rates = [Line("produced", COLOURS[0], np.histogram(acked, edges)[0] / seconds)]
    lags = []
    for group, colour in zip(groups, COLOURS[1:] * len(groups), strict=False):
        settled = _first_settled(history, group)
        rates.append(Line(f"delivered, {group}", colour, np.histogram(settled, edges)[0] / seconds))
        behind = np.searchsorted(acked, edges[1:]) - np.searchsorted(settled, edges[1:])
        lags.append(Line(f"behind, {group}", colour, np.maximum(behind, 0).astype(np.float64)))
    canvas = Canvas(begin, end)
    canvas.heading(title)
    faults = [
        event for event in history.events.to_pylist() if event["kind"] in ("fault", "recovery")
    ]
    panels = (("records per second", rates), ("records behind", lags))
    canvas.shade(faults, Canvas.height_of(len(panels)))
    for name, lines in panels:
        canvas.panel(name, lines)
    canvas.rows("faults, and recovery", (_bar(event, end) for event in faults))
    lives = sorted(history.processes.to_pylist(), key=lambda line: (line["name"], line["started"]))
    canvas.rows("processes", (_life(line, end) for line in lives))
    return canvas.svg()


def _span(history: History) -> tuple[int, int]:
    moments = [
        *(_times(table) for table in (history.produced, history.rows, history.events)),
        history.processes["ended"].drop_null().to_numpy(),
    ]
    joined = np.concatenate(moments).astype(np.int64)
    if not len(joined):
        return 0, 1_000_000_000
    return int(joined.min()), max(int(joined.max()), int(joined.min()) + 1)


def _times(table: pa.Table) -> NDArray[np.int64]:
    times: NDArray[np.int64] = table["time"].to_numpy().astype(np.int64)
    return times


def _first_settled(history: History, group: str) -> NDArray[np.int64]:
    """When each record came to the sink, or to the error sink, for the first time; in order."""
    tables = (history.group("rows", group), history.group("dead", group))
    keys = np.concatenate(
        [
            (table["partition"].to_numpy() << 44) | table["offset"].to_numpy().astype(np.int64)
            for table in tables
        ]
    )
    times = np.concatenate([_times(table) for table in tables])
    order = np.lexsort((times, keys))
    _, first = np.unique(keys[order], return_index=True)
    return np.sort(times[order][first])


_Bar = tuple[str, int, int, str, str]  # row, from, to, colour, tooltip


def _bar(event: dict[str, object], end: int) -> _Bar:
    begin, until = int(str(event["time"])), int(str(event["until"] or end))
    colour = _FAULT if event["kind"] == "fault" else "#e8b4ae"
    return str(event["name"]), begin, until, colour, f"{event['kind']}: {event['detail']}"


def _life(line: dict[str, object], end: int) -> _Bar:
    begin, until = int(str(line["started"])), int(str(line["ended"] or end))
    colour = {"killed": _FAULT, "died": "#000"}.get(str(line["ending"]), "#9ab7d3")
    what = f"process {line['pid']} {line['ending']}, exit code {line['code']}"
    return str(line["name"]), begin, until, "#9ab7d3" if colour == _FAULT else colour, what


class Canvas:
    """Draws from top to bottom.

    Args:
        begin: the time at the left edge, in nanoseconds;
        end: at the right edge.
    """

    def __init__(self, begin: int, end: int) -> None:
        self._begin, self._end = begin, end
        self._parts: list[str] = []
        self._y = 0

    @staticmethod
    def height_of(panels: int) -> int:
        """The height of so many panels."""
        return (_PANEL + _GAP) * panels

    def heading(self, text: str) -> None:
        """A title above all."""
        self._y += 24
        self._text(_LEFT, self._y, text, "title")
        self._y += 8

    def shade(self, events: Iterable[dict[str, object]], height: int) -> None:
        """Where a fault was, behind everything that is drawn in the next `height` pixels."""
        for event in events:
            _, begin, until, colour, what = _bar(event, self._end)
            x, width = self._x(begin), max(1.0, self._x(until) - self._x(begin))
            self._parts.append(
                f'<rect x="{x:.1f}" y="{self._y}" width="{width:.1f}" height="{height}" '
                f'fill="{colour}" opacity="0.13"><title>{escape(what)}</title></rect>'
            )

    def panel(self, title: str, lines: Sequence[Line]) -> None:
        """A diagram over time."""
        top, bottom = self._y + 22, self._y + 22 + _PANEL - 22
        highest = max((float(line.values.max(initial=0)) for line in lines), default=0) or 1
        self._text(_LEFT, self._y + 14, title, "title")
        x = _LEFT + 150
        for line in lines:
            self._parts.append(
                f'<line x1="{x}" y1="{self._y + 10}" x2="{x + 16}" y2="{self._y + 10}" '
                f'stroke="{line.colour}" stroke-width="2"/>'
            )
            self._text(x + 20, self._y + 14, line.name)
            x += 40 + 7 * len(line.name)
        for share in (0, 0.5, 1):
            y = bottom - share * (bottom - top)
            self._parts.append(
                f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            )
            self._text(_LEFT - 6, int(y) + 4, f"{highest * share:,.0f}", "muted", "end")
        for line in lines:
            step = (_WIDTH - _LEFT - _RIGHT) / max(1, len(line.values))
            points = " ".join(
                f"{_LEFT + (at + 0.5) * step:.1f},{bottom - value / highest * (bottom - top):.1f}"
                for at, value in enumerate(line.values)
            )
            self._parts.append(
                f'<polyline points="{points}" fill="none" stroke="{line.colour}" '
                'stroke-width="1.5"/>'
            )
        self._axis(bottom)
        self._y += _PANEL + _GAP

    def rows(self, title: str, bars: Iterable[_Bar]) -> None:
        """One row for each name, with its spans."""
        self._text(_LEFT, self._y + 12, title, "title")
        self._y += 20
        rows: dict[str, int] = {}
        for name, begin, until, colour, what in bars:
            if name not in rows:
                rows[name] = self._y + len(rows) * _ROW
                self._text(_LEFT - 6, rows[name] + 10, name[:20], anchor="end")
            x = self._x(begin)
            width = max(2.0, self._x(until) - x - 1)
            self._parts.append(
                f'<rect x="{x:.1f}" y="{rows[name] + 2}" width="{width:.1f}" height="{_ROW - 5}" '
                f'fill="{colour}"><title>{escape(f"{name}: {what}")}</title></rect>'
            )
        self._y += len(rows) * _ROW + 4
        self._axis(self._y)
        self._y += 34

    def svg(self) -> str:
        """All of it."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {self._y}" '
            f'width="{_WIDTH}" height="{self._y}"><style>{_STYLE}</style>'
            f'<rect width="100%" height="100%" fill="#fff"/>{"".join(self._parts)}</svg>\n'
        )

    def _axis(self, y: float) -> None:
        seconds = (self._end - self._begin) / 1e9
        step = next(
            (s for s in (1, 2, 5, 10, 30, 60, 300, 600) if seconds / s <= 12), int(seconds / 12)
        )
        self._parts.append(
            f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>'
        )
        for second in range(0, int(seconds) + 1, step):
            x = self._x(self._begin + second * 1_000_000_000)
            self._text(int(x), int(y) + 14, f"{second} s", "muted", "middle")

    def _x(self, moment: int) -> float:
        share = (moment - self._begin) / (self._end - self._begin)
        return _LEFT + min(1.0, max(0.0, share)) * (_WIDTH - _LEFT - _RIGHT)

    def _text(self, x: int, y: int, text: str, kind: str = "", anchor: str = "start") -> None:
        self._parts.append(
            f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'
        )
