"""The report's page: sections of tables and pictures from the summary, the settings and the samples."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

from specdec_engine.bench.advice import advice
from specdec_engine.bench.html import svg
from specdec_engine.bench.html.style import STYLE
from specdec_engine.bench.methods import PLAIN
from specdec_engine.bench.recorder import PARTS, TARGETS
from specdec_engine.bench.samples import Sample
from specdec_engine.bench.summary import ALL, ratio_text
from specdec_engine.bench.table import HEADINGS, MOST_TASKS, outputs_text, table_row

# What each section is called, by the name of its place in the page, in order.
SECTIONS: Final = {
    "speed": "Speed-up",
    "identity": "Outputs against plain decoding",
    "acceptance": "Acceptance by position",
    "lengths": "Accepted lengths",
    "time": "Where the time goes",
    "forward": "Cost of a forward by rows",
    "tokens": "Tokens by who produced them",
    "settings": "Settings",
}
PHASES: Final = {
    "draft": "drafting",
    "target": "target's forward",
    "verify": "sampling and verification",
    "rest": "rest",
    "prompt": "steps with prompt rows",
}

# What a section's pictures show, the same for every concurrency.
ABOUT: Final = {
    "acceptance": "Share of the drafts at a position that were accepted; in a tree, a position is a depth.",
    "lengths": "Share of steps by how many drafts were accepted; each step gives one token more.",
    "time": "Milliseconds of all steps, divided by all tokens. Steps with prompt rows are counted by themselves.",
    "forward": "Mean time of the target's forward, in steps without prompt rows, by how many rows it ran; widths that "
    "ran fewer than five times are left out.",
}
FEWEST_FORWARDS: Final = 5
PART_COLOURS: Final = 6


def page(
    summary: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
    machine: Mapping[str, Any],
    parts: Mapping[str, Sequence[str]],
    samples: Sequence[Sample],
) -> str:
    """Return the page: HTML with its style and pictures inside; it asks no network for anything.

    `parts` names the parts of the arms whose method is made of others.
    """
    title = f"specdec bench: {settings['model']}"
    bodies = {
        "speed": _speed(summary),
        "identity": _identity(summary),
        "acceptance": _each(summary, lambda each: _acceptance(each, parts), ABOUT["acceptance"]),
        "lengths": _each(summary, _lengths, ABOUT["lengths"]),
        "time": _each(summary, _time, ABOUT["time"]),
        "forward": _each(summary, _forward, ABOUT["forward"]),
        "tokens": _tokens(samples, parts),
        "settings": settings_text(settings, machine),
    }
    prompts = max((each["prompts"] for each in summary), default=0)
    about = f"{prompts} prompts, up to {settings['max_tokens']} tokens, temperature {settings['temperature']:g}"
    sections = {name: (heading, bodies[name]) for name, heading in SECTIONS.items()}
    return document(title, f"{about}; {machine_line(machine)}", sections)


def document(title: str, about: str, sections: Mapping[str, tuple[str, Iterable[str]]]) -> str:
    """Return a page with its style inside: a line below the title, then each section's heading and body, by its id."""
    body = "".join(
        f'<section id="{name}"><h2>{escape(heading)}</h2>{"".join(inside)}</section>'
        for name, (heading, inside) in sections.items()
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width"/><link rel="icon" href="data:,"/>'
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>"
        f'<p class="note">{escape(about)}</p>{body}</body></html>\n'
    )


def machine_line(machine: Mapping[str, Any]) -> str:
    """Return the machine in one line."""
    return ", ".join(f"{name} {value}" for name, value in machine.items())


def _each(summary: Sequence[Mapping[str, Any]], draw: Any, about: str) -> Iterator[str]:
    """Yield what is shown, and what `draw` makes of each concurrency, with a heading where there are several."""
    yield f"<p>{about}</p>"
    for each in summary:
        if len(summary) > 1:
            yield f"<h3>{_together(each)}</h3>"
        yield from draw(each)


def _together(each: Mapping[str, Any]) -> str:
    return f"Concurrency {each['concurrency']} ({each['prompts_at_once']:.1f} prompts at once on average)"


def _methods(each: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    """Return the arms but the plain one, each with the place of its colour."""
    return [(place, arm) for place, arm in enumerate(each["arms"]) if arm["arm"] != PLAIN]


def keys(names: Sequence[tuple[int, str]]) -> str:
    """Return which colour is which, by the places of the colours."""
    found = (f'<span class="key"><i style="background:{svg.colour(i)}"></i>{escape(name)}</span>' for i, name in names)
    return f"<p>{''.join(found)}</p>"


def _arm_keys(arms: Sequence[tuple[int, Mapping[str, Any]]]) -> str:
    return keys([(place, arm["arm"]) for place, arm in arms])


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts."""
    head = "".join(f"<th>{escape(each)}</th>" for each in headings)
    body = ["".join(f'<td class="n">{escape(cell)}</td>' for cell in row) for row in rows]
    return f'<div class="wide"><table><tr>{head}</tr><tr>{"</tr><tr>".join(body)}</tr></table></div>'


def picture(drawn: str) -> str:
    """Return a picture that may be wider than the page."""
    return f'<div class="wide">{drawn}</div>'


def _speed(summary: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield (
        "<p>Tokens per second over plain decoding's, prompt passes included, with 90&nbsp;% intervals over what was "
        "timed together; long ones leave the picture. The dashed line is plain decoding. Bars without an interval rest "
        "on one measurement.</p>"
    )
    for each in summary:
        if len(summary) > 1:
            yield f"<h3>{_together(each)}</h3>"
        yield table(HEADINGS, [table_row(arm) for arm in each["arms"]])
        yield f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in advice(each))}</ul>"
        groups = [ALL, *each["tasks"]] if 1 < len(each["tasks"]) <= MOST_TASKS else [ALL]
        series = [(i, [_ratio_bar(arm, group) for group in groups]) for i, arm in _methods(each)]
        yield picture(svg.grouped_bars(groups, series, svg.Axis("speed-up over plain", 1.0)))
        yield _arm_keys(_methods(each))


def _ratio_bar(arm: Mapping[str, Any], task: str) -> svg.Bar:
    ratio = arm["speed_up"][task]
    return svg.Bar(ratio["value"], ratio["low"], ratio["high"], f"{arm['arm']}, {task}: {ratio_text(ratio)}")


def _identity(summary: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield (
        "<p>Every output was compared with plain decoding's. A difference is rounding where plain decoding's own "
        "margin is below the noise between forwards of different width, else a fault; it is not promised where the "
        "verifier is lossy, or where sampled tokens need not be the same.</p>"
    )
    for each in summary:
        rows = [(arm["arm"], outputs_text(arm["identity"]), _first(arm["identity"])) for _, arm in _methods(each)]
        if len(summary) > 1:
            yield f"<h3>{_together(each)}</h3>"
        yield table(("method", "outputs", "first difference"), rows)


def _first(identity: Mapping[str, Any]) -> str:
    for first in identity["first"]:
        return f"prompt {first['prompt']}, output index {first['index']}: {first['plain']} against {first['other']}"
    return "-"


def _acceptance(each: Mapping[str, Any], parts: Mapping[str, Sequence[str]]) -> Iterator[str]:
    series = []
    for place, arm in _methods(each):
        points = [
            (float(i), rate, f"{arm['arm']}, position {i}: {rate:.3f} of {drafted} drafts")
            for i, (rate, drafted) in enumerate(zip(arm["acceptance_per_pos"], arm["drafted_per_pos"], strict=True), 1)
            if rate is not None
        ]
        series.append((place, points))
    if not any(points for _, points in series):
        yield "<p>No drafts were verified.</p>"
        return
    yield picture(svg.lines(series, svg.Axis("accepted of drafted", reach=1.0), "position in the draft"))
    yield _arm_keys(_methods(each))
    yield from _by_part(each, parts)


def _lengths(each: Mapping[str, Any]) -> Iterator[str]:
    longest = max((n for _, arm in _methods(each) for n, _ in arm["accepted_lengths"]), default=0)
    groups = ["no draft", *map(str, range(longest + 1))]
    series = []
    for place, arm in _methods(each):
        counts = dict(map(tuple, arm["accepted_lengths"]))
        total = max(1, arm["undrafted"] + sum(counts.values()))
        shares = [arm["undrafted"] / total, *(counts.get(n, 0) / total for n in range(longest + 1))]
        titles = (f"{arm['arm']}, {group}: {share:.1%}" for group, share in zip(groups, shares, strict=True))
        bars = [svg.Bar(share, title=title) for share, title in zip(shares, titles, strict=True)]
        series.append((place, bars))
    yield picture(svg.grouped_bars(groups, series, svg.Axis("share of steps")))
    yield _arm_keys(_methods(each))


def _time(each: Mapping[str, Any]) -> Iterator[str]:
    rows = {arm["arm"]: {name: arm["ms_per_token"][part] for part, name in PHASES.items()} for arm in each["arms"]}
    yield picture(svg.stacked_bars(rows, "ms per token"))
    yield keys(list(enumerate(PHASES.values())))


def _forward(each: Mapping[str, Any]) -> Iterator[str]:
    arms = list(enumerate(each["arms"]))
    series = []
    for place, arm in arms:
        often = [point for point in arm["forward_ms"] if point[2] >= FEWEST_FORWARDS] or arm["forward_ms"]
        series.append((place, [_forward_point(arm["arm"], *point) for point in often]))
    yield picture(svg.lines(series, svg.Axis("ms a forward"), "rows of the forward"))
    yield _arm_keys(arms)


def _forward_point(arm: str, rows: float, ms: float, count: float) -> tuple[float, float, str]:
    return rows, ms, f"{arm}, {rows:g} rows: {ms:.2f} ms, {count:g} forwards"


def _tokens(samples: Sequence[Sample], parts: Mapping[str, Sequence[str]]) -> Iterator[str]:
    yield (
        '<p class="legend"><b class="t">from the target</b><b class="d">drafted and accepted</b>'
        "The target's row behind the last accepted draft always gives one token.</p>"
    )
    for arm, names in parts.items():
        keys = (f'<b class="{_colour(PARTS[i % len(PARTS)])}">{escape(name)}</b>' for i, name in enumerate(names))
        yield f'<p class="legend">Drafted by the parts of {escape(arm)}: {"".join(keys)}</p>'
    before = None
    for sample in samples:
        if sample.prompt != before:
            yield f"<h3>Prompt {sample.prompt} ({escape(sample.task)})</h3>"
        before = sample.prompt
        drafted = sum(producer != TARGETS for _, producer in sample.tokens)
        yield f'<p class="note">{escape(sample.arm)}: {drafted} of {len(sample.tokens)} tokens were drafted</p>'
        spans = "".join(f'<b class="{_colour(producer)}">{escape(text)}</b>' for text, producer in sample.tokens)
        yield f'<div class="tokens">{spans}</div>'


def _colour(producer: str) -> str:
    """Return the class of a token's colour."""
    return f"p{PARTS.index(producer) % PART_COLOURS}" if producer in PARTS else producer


def _by_part(each: Mapping[str, Any], parts: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield what each part of a method brought, where there are such methods."""
    rows = []
    for _, arm in _methods(each):
        counts = dict(enumerate(zip(arm["drafted_per_part"], arm["accepted_per_part"], strict=True)))
        times = dict(enumerate(arm["part_ms_per_token"]))
        for part, name in enumerate(parts.get(arm["arm"], ())):
            drafted, accepted = counts.get(part, (0, 0))
            share = f"{100 * accepted / drafted:.0f} %" if drafted else "-"
            spent = f"{times[part]:.3f}" if part in times else "-"
            rows.append((arm["arm"], name, str(drafted), str(accepted), share, spent))
    if rows:
        yield table(("method", "part", "drafted", "accepted", "share", "ms of drafting a token"), rows)


def settings_text(settings: Mapping[str, Any], machine: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings and the machine as they are in the JSON file."""
    data = json.dumps({"settings": settings, "machine": machine}, indent=1, ensure_ascii=False)
    yield f"<pre>{escape(data)}</pre>"
