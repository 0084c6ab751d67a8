"""Pictures as SVG text: grouped bars with intervals, lines, stacked bars; they know numbers and labels only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

# Okabe and Ito's colours, which people of every kind of colour vision tell apart.
COLOURS: Final = (
    "#7f7f7f",
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#b8a800",
    "#332288",
    "#882255",
)
LEFT, TOP, BOTTOM, RIGHT = 52, 14, 44, 10
HEIGHT: Final = 260
BAR: Final = 16
WIDEST: Final = 960
NARROWEST: Final = 240
NOTHING_BELOW: Final = 18  # room for what the horizontal axis counts, where its labels say it
REACH: Final = 1.5  # times the highest bar, how far up an interval is drawn


@dataclass(frozen=True)
class Bar:
    """One bar: its height, the ends of its interval (None without one), and what is shown of it under the pointer."""

    value: float
    low: float | None = None
    high: float | None = None
    title: str = ""


@dataclass(frozen=True)
class Axis:
    """A vertical axis from 0: what it counts, a value at which a line goes across, and how far it reaches at least."""

    label: str
    line: float | None = None
    reach: float = 0.0


def colour(index: int) -> str:
    """Return the colour of the series with that place."""
    return COLOURS[index % len(COLOURS)]


def ticks(most: float, wanted: int = 5, least: float = 0.0) -> list[float]:
    """Return round numbers from 0 on, at least `least` apart, the last not below `most`."""
    if not (most > 0 and math.isfinite(most)):
        return [0.0, 1.0]
    rough = max(most / wanted, least)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [step * i for i in range(math.ceil(most / step - 1e-9) + 1)]


def grouped_bars(groups: Sequence[str], series: Sequence[tuple[int, Sequence[Bar | None]]], axis: Axis) -> str:
    """Return bars side by side for each group. `series` has the place of its colour and a bar, or None, a group."""
    bars = [bar for _, each in series for bar in each if bar is not None]
    most = REACH * max([axis.line or 0.0, *(bar.value for bar in bars)])  # an interval may leave the picture
    scale = ticks(min(most, max([axis.line or 0.0, *(bar.high or bar.value for bar in bars)])))
    wide = max(BAR * len(series) + 14, max((7 * len(group) + 10 for group in groups), default=40))
    wide = max(wide, NARROWEST // max(1, len(groups)))
    width = LEFT + wide * len(groups) + RIGHT
    drawn = _frame(width, scale, axis)
    for place, group in enumerate(groups):
        left = LEFT + place * wide + (wide - BAR * len(series)) / 2
        for i, (tint, each) in enumerate(series):
            if (bar := each[place]) is not None:
                drawn += _bar(left + i * BAR, bar, colour(tint), scale[-1])
        drawn.append(_text(LEFT + (place + 0.5) * wide, HEIGHT - BOTTOM + 16, group, "middle"))
    return _svg(width, HEIGHT - NOTHING_BELOW, drawn, axis.label)


def lines(series: Sequence[tuple[int, Sequence[tuple[float, float, str]]]], axis: Axis, below: str) -> str:
    """Return lines through points (x, y, what is shown under the pointer), x whole numbers from 0, with dots."""
    points = [point for _, each in series for point in each]
    across = ticks(max((x for x, _, _ in points), default=1.0), 8, least=1.0)
    scale = ticks(max([axis.reach, *(y for _, y, _ in points)], default=1.0))
    width = 560
    drawn = _frame(width, scale, axis)
    span = width - LEFT - RIGHT

    def at(x: float) -> float:
        return LEFT + span * x / across[-1]

    for x in across:
        drawn.append(_text(at(x), HEIGHT - BOTTOM + 16, f"{x:g}", "middle"))
    drawn.append(_text(LEFT + span / 2, HEIGHT - 8, below, "middle"))
    for tint, each in series:
        path = " ".join(f"{at(x):.1f},{_y(y, scale[-1]):.1f}" for x, y, _ in each)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour(tint)}" stroke-width="2"/>')
        for x, y, title in each:
            spot = f'<circle cx="{at(x):.1f}" cy="{_y(y, scale[-1]):.1f}" r="3.5" fill="{colour(tint)}">'
            drawn.append(f"{spot}<title>{escape(title)}</title></circle>")
    return _svg(width, HEIGHT, drawn, axis.label)


def stacked_bars(rows: Mapping[str, Mapping[str, float]], unit: str) -> str:
    """Return one bar from left to right for each row, made of parts in their order; colours go by the part's place."""
    most = max((sum(parts.values()) for parts in rows.values()), default=1.0)
    across = ticks(most)
    left = 16 + max((7 * len(label) for label in rows), default=0)
    height, width = 30 * len(rows) + 46, min(WIDEST, left + 620)
    span = width - left - 20
    drawn = []
    for x in across:
        at = left + span * x / across[-1]
        drawn.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="4" y2="{height - 38}"/>')
        drawn.append(_text(at, height - 24, f"{x:g}", "middle"))
    drawn.append(_text(left + span / 2, height - 6, unit, "middle"))
    for i, (label, parts) in enumerate(rows.items()):
        drawn.append(_text(left - 6, 30 * i + 22, label, "end"))
        start = float(left)
        for tint, (part, value) in enumerate(parts.items()):
            size = span * value / across[-1]
            bar = f'<rect x="{start:.1f}" y="{30 * i + 6}" width="{size:.1f}" height="22" fill="{colour(tint)}">'
            drawn.append(f"{bar}<title>{escape(f'{label}, {part}: {value:.3g} {unit}')}</title></rect>")
            start += size
    return _svg(width, height, drawn, unit)


def _frame(width: float, scale: Sequence[float], axis: Axis) -> list[str]:
    drawn = []
    for value in scale:
        y = _y(value, scale[-1])
        drawn.append(f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT:.0f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(_text(LEFT - 6, y + 4, f"{value:g}", "end"))
    if axis.line is not None:
        y = _y(axis.line, scale[-1])
        drawn.append(f'<line class="mark" x1="{LEFT}" x2="{width - RIGHT:.0f}" y1="{y:.1f}" y2="{y:.1f}"/>')
    middle = (HEIGHT - BOTTOM + TOP) / 2
    turned = f'transform="rotate(-90 12 {middle:.0f})"'
    drawn.append(f'<text x="12" y="{middle:.0f}" text-anchor="middle" {turned}>{escape(axis.label)}</text>')
    return drawn


def _bar(x: float, bar: Bar, fill: str, most: float) -> list[str]:
    top = _y(bar.value, most)
    title = f"<title>{escape(bar.title)}</title>"
    rect = f'<rect x="{x + 1:.1f}" y="{top:.1f}" width="{BAR - 2}" height="{HEIGHT - BOTTOM - top:.1f}" fill="{fill}">'
    drawn = [f"{rect}{title}</rect>"]
    if bar.low is not None and bar.high is not None:
        middle, low, high = x + BAR / 2, _y(bar.low, most), _y(min(bar.high, most), most)
        end = "h8m-4 0" if bar.high <= most else "m4 0"  # none where it leaves the picture
        path = f"M{middle - 4:.1f} {high:.1f}{end}V{low:.1f}m-4 0h8"
        drawn.append(f'<path class="interval" d="{path}" fill="none"/>')
    return drawn


def _y(value: float, most: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / most


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(width: float, height: float, drawn: Sequence[str], label: str) -> str:
    shape = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    return f'<svg {shape} role="img" aria-label="{escape(label)}">{"".join(drawn)}</svg>'
