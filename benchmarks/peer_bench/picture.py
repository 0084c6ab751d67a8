"""The picture of a run, one SVG file: speeds, ratios by task with intervals, forwards by rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from peer_bench.arms import PLAIN
from peer_bench.figures import ALL, DECODE
from peer_bench.measure import AGAIN, MANY
from specdec_engine.bench.html import svg
from specdec_engine.bench.summary import ratio_text

STYLE: Final = (
    "text{font:11px system-ui,sans-serif;fill:#1b1b1b}.title{font-size:14px;font-weight:600}.grid{stroke:#dddddd}"
    ".mark{stroke:#1b1b1b;stroke-dasharray:4 3}.interval{stroke:#1b1b1b;stroke-width:1.3}"
)
GAP: Final = 24


def picture(found: Mapping[str, Any]) -> str:
    """Return the text of the file."""
    speeds = found["tokens_per_second"]
    many = [arm for arm in speeds if arm.endswith(MANY)]
    arms = [arm for arm in speeds if arm not in many and arm != f"{PLAIN}, {AGAIN}"]
    tints = {arm: place for place, arm in enumerate(arms)}
    charts = [
        ("Tokens per second, one prompt at a time", arms, _speeds(speeds, arms, tints)),
        ("Times plain specdec's tokens per second, 90 % intervals", arms, _ratios(found, arms, tints)),
    ]
    if many:
        own = {arm: tints[arm.removesuffix(f", {MANY}")] for arm in many}
        charts.append(("Tokens per second, prompts together", many, _speeds(speeds, many, own)))
        tints |= own
    if found["forward_ms"]:
        charts.append(("One forward by rows", list(found["forward_ms"]), _forwards(found["forward_ms"], tints)))
    drawn: list[str] = []
    top, wide = 0, 0
    for title, keys, chart in charts:
        drawn.append(f'<text class="title" x="10" y="{top + 20}">{escape(title)}</text>')
        lines = _keys(keys, tints, top + 38)
        drawn += lines
        size = re.search(r'width="(\d+)" height="(\d+)"', chart)
        assert size is not None
        inner = top + 38 + 16 * len(keys)
        drawn.append(chart.replace("<svg ", f'<svg y="{inner}" ', 1))
        top, wide = inner + int(size[2]) + GAP, max(wide, int(size[1]))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {top}" width="{wide}" height="{top}">'
    return f'{head}<style>{STYLE}</style><rect width="100%" height="100%" fill="#ffffff"/>{"".join(drawn)}</svg>\n'


def _keys(arms: Sequence[str], tints: Mapping[str, int], top: int) -> list[str]:
    return [
        f'<rect x="12" y="{top + 16 * i - 9}" width="10" height="10" fill="{svg.colour(tints[arm])}"/>'
        f'<text x="28" y="{top + 16 * i}">{escape(arm)}</text>'
        for i, arm in enumerate(arms)
    ]


def _speeds(speeds: Mapping[str, Mapping[str, float | None]], arms: Sequence[str], tints: Mapping[str, int]) -> str:
    parts = (ALL, DECODE)

    def bar(arm: str, value: float | None) -> svg.Bar | None:
        return None if value is None else svg.Bar(value, title=f"{arm}: {value:.1f}")

    series = [(tints[arm], [bar(arm, speeds[arm][part]) for part in parts]) for arm in arms]
    return svg.grouped_bars(parts, series, svg.Axis("tokens/s"))


def _ratios(found: Mapping[str, Any], arms: Sequence[str], tints: Mapping[str, int]) -> str:
    parts = (ALL, DECODE, *found["tasks"])

    def bar(arm: str, ratio: dict[str, Any] | None) -> svg.Bar | None:
        if ratio is None:
            return None
        return svg.Bar(ratio["value"], ratio["low"], ratio["high"], f"{arm}: {ratio_text(ratio)}")

    series = [(tints[arm], [bar(arm, found["over_specdec"][arm].get(part)) for part in parts]) for arm in arms]
    return svg.grouped_bars(parts, series, svg.Axis("times plain specdec", 1.0))


def _forwards(forward_ms: Mapping[str, Mapping[int, float]], tints: Mapping[str, int]) -> str:
    series = [
        (tints[arm], [(count, value, f"{arm}, {count} rows: {value:.1f} ms") for count, value in sorted(each.items())])
        for arm, each in forward_ms.items()
    ]
    return svg.lines(series, svg.Axis("ms"), "rows")
