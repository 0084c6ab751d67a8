"""The page of an evaluation: training, agreement by depth, accepted length and speed by task; one file, no network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from specdec_engine.bench.html import svg
from specdec_engine.bench.html.report import document, keys, machine_line, picture, settings_text, table
from specdec_engine.bench.summary import ALL, ratio_text
from specdec_engine.bench.table import HEADINGS, outputs_text, table_row
from specdec_train.evaluate.runs import Point, TrainedRun
from specdec_train.evaluate.session import DRAFT

MOST_POINTS: Final = 120  # of a curve; lines of the log between are averaged
THOUSAND: Final = 1000


def page(result: Mapping[str, Any], run: TrainedRun | None) -> str:
    """Return the page of what `specdec train evaluate` wrote as JSON, with the run's own curves if there is a run."""
    settings, summary = result["settings"], result["summary"]
    title = f"specdec train evaluate: {settings['draft']}"
    sections: dict[str, tuple[str, Iterable[str]]] = {}
    if run is not None:
        sections["training"] = ("Training", _training(run.log))
    sections["agreement"] = ("Agreement by depth", _agreement(result["agreement"]))
    sections["acceptance"] = ("Accepted length by task", _lengths(summary))
    sections["speed"] = ("Speed against plain decoding", _speed(summary))
    shown = settings if run is None else {**settings, "training": dict(run.settings)}
    sections["settings"] = ("Settings", settings_text(shown, result["machine"]))
    about = f"target {settings['model']}, k = {settings['k']}, up to {settings['max_tokens']} tokens"
    return document(title, f"{about}; {machine_line(result['machine'])}", sections)


def _training(log: Sequence[Point]) -> Iterator[str]:
    losses = [(point.ids, point.loss) for point in log if point.loss is not None]
    if losses:
        points = [(ids / THOUSAND, loss, f"{ids} ids: loss {loss:.3f}") for ids, loss in _thinned(losses)]
        yield "<h3>Loss</h3>"
        yield picture(svg.lines([(1, points)], svg.Axis("loss"), "thousand ids trained on"))
    measured = [point for point in log if point.agreement]
    if measured:
        yield "<h3>Agreement with the target on held-out data</h3>"
        depths = range(max(len(point.agreement) for point in measured))
        series = [(depth + 1, _curve(measured, depth)) for depth in depths]
        yield picture(svg.lines(series, svg.Axis("agreement", reach=1.0), "thousand ids trained on"))
        yield keys([(depth + 1, f"depth {depth + 1}") for depth in depths])
    if not losses and not measured:
        yield "<p>The log of the run is empty.</p>"


def _curve(measured: Sequence[Point], depth: int) -> list[tuple[float, float, str]]:
    values = [(point.ids, point.agreement[depth]) for point in measured if depth < len(point.agreement)]
    return [(ids / THOUSAND, value, f"{ids} ids, depth {depth + 1}: {value:.3f}") for ids, value in values]


def _thinned(values: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return at most `MOST_POINTS` points: neighbours averaged, at the last one's place."""
    size = -(-len(values) // MOST_POINTS)
    parts = [values[at : at + size] for at in range(0, len(values), size)]
    return [(part[-1][0], sum(value for _, value in part) / len(part)) for part in parts]


def _agreement(agreement: Mapping[str, Any]) -> Iterator[str]:
    yield (
        "<p>Held out: the share of places at which the head's likeliest id is the target's, when the run measured it "
        "last. In the engine: how often a draft was accepted once all drafts before it were.</p>"
    )
    rows = [("held out", agreement["held_out"]), ("in the engine", agreement["in_engine"])]
    depths = max((len(values or ()) for _, values in rows), default=0)
    filled = [(name, [*(values or ()), *[None] * (depths - len(values or ()))]) for name, values in rows]
    yield table(
        ("depth", *(str(depth + 1) for depth in range(depths))),
        [(name, *("-" if value is None else f"{value:.3f}" for value in values)) for name, values in filled],
    )


def _draft(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(arm for arm in summary["arms"] if arm["arm"] == DRAFT)
    return found


def _lengths(summary: Mapping[str, Any]) -> Iterator[str]:
    yield "<p>Tokens emitted by a step that had drafts, the target's own token included.</p>"
    lengths = _draft(summary)["acceptance_length_by_task"]
    bars = [
        None if length is None else svg.Bar(length, title=f"{task}: {length:.2f}") for task, length in lengths.items()
    ]
    yield picture(svg.grouped_bars(list(lengths), [(1, bars)], svg.Axis("accepted length", 1.0)))
    rows = [(task, "-" if length is None else f"{length:.2f}") for task, length in lengths.items()]
    yield table(("task", "accepted length"), rows)


def _speed(summary: Mapping[str, Any]) -> Iterator[str]:
    yield table(HEADINGS, [table_row(arm) for arm in summary["arms"]])
    draft = _draft(summary)
    speeds = {arm["arm"]: arm["tokens_per_second"] for arm in summary["arms"]}
    tasks = [ALL, *summary["tasks"]]
    rows = [
        (task, *(f"{speed[task]:.1f}" for speed in speeds.values()), ratio_text(draft["speed_up"][task]))
        for task in tasks
    ]
    yield table(("task", *(f"{name}, tokens/s" for name in speeds), "x plain (90 %)"), rows)
    yield f"<p>Outputs beside plain decoding's: {outputs_text(draft['identity'])}.</p>"
