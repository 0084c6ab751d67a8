"""The report's page: well-formed, complete by itself, escaped, small; and a browser that is there has no complaint."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from bench_runs import EVIL, METHODS, bench, question_file
from words import model_folder, tiny_tokenizer

from specdec_engine.bench.html import svg
from specdec_engine.bench.html.report import SECTIONS, page
from specdec_engine.bench.rows import Row
from specdec_engine.bench.samples import samples_of
from specdec_engine.bench.summary import summarise

VOID = {"meta", "link", "br"}
TWO_MB = 2_000_000


class Page(HTMLParser):
    """A page taken apart; AssertionError where a tag is closed that is not open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"an attribute twice in <{tag}>"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.append((self.open[-1], data))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run's page and the file of its rows."""
    folder = tmp_path_factory.mktemp("report")
    model, file, html = model_folder(folder / "tiny"), folder / "out.json", folder / "out.html"
    done = bench(model, question_file(folder), "--concurrency", "1,2", "--json", file, "--html", html)
    assert done.returncode == 0, done.stderr
    return {"file": html, "text": html.read_text(encoding="utf-8"), **json.loads(file.read_text())}


def numbers(text: str) -> list[float]:
    return [float(each) for each in re.findall(r"-?[0-9]+(?:\.[0-9]+)?", text)]


def check(text: str) -> Page:
    """Check what holds for every page, whatever is in it."""
    found = Page(text)
    names = [tag for tag, _ in found.tags]
    assert not {"script", "iframe", "img", "object", "embed", "base", "form"} & set(names)
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in found.tags:
        assert not any(name.startswith("on") for name in attributes), f"a handler in <{tag}>"
        for name in ("href", "src", "xlink:href"):
            link = attributes.get(name) or ""
            assert not link or link.startswith("data:") or link[1:] in ids, f"{name}={link!r} leads nowhere"
    assert "url(" not in text and "@import" not in text and "http:" not in text and "https:" not in text
    for tag, attributes in found.tags:
        for name in ("x", "y", "width", "height", "cx", "cy", "points"):
            assert "nan" not in (attributes.get(name) or "") and "inf" not in (attributes.get(name) or ""), tag
    assert len(text.encode()) < TWO_MB
    return found


def test_the_page_is_whole_and_has_every_picture(made: dict[str, Any]) -> None:
    found = check(made["text"])
    assert [attributes["id"] for tag, attributes in found.tags if tag == "section"] == list(SECTIONS)
    pictures = [attributes["aria-label"] for tag, attributes in found.tags if tag == "svg"]
    each = ["speed-up over plain", "accepted of drafted", "share of steps", "ms per token", "ms a forward"]
    assert pictures == [label for label in each for _ in (1, 2)]


def test_bars_points_and_tables_are_the_figures(made: dict[str, Any]) -> None:
    titles = [text for tag, text in Page(made["text"]).texts if tag == "title"]
    cells = [text for tag, text in Page(made["text"]).texts if tag == "td"]
    for each in made["summary"]:
        for arm in each["arms"][1:]:
            ratio = arm["speed_up"]["all"]
            said = f"{ratio['value']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
            assert f"{arm['arm']}, all: {said}" in titles and said in cells
            for position, rate in enumerate(arm["acceptance_per_pos"], 1):
                assert any(t.startswith(f"{arm['arm']}, position {position}: {rate:.3f}") for t in titles)
            for task in each["tasks"]:
                assert any(title.startswith(f"{arm['arm']}, {task}: ") for title in titles)
    for arm in made["summary"][0]["arms"]:
        for part, name in {"draft": "drafting", "target": "target's forward", "rest": "rest"}.items():
            assert any(
                title.startswith(f"{arm['arm']}, {name}: {arm['ms_per_token'][part]:.3g} ms") for title in titles
            )


def test_what_users_wrote_is_text_and_no_markup(made: dict[str, Any]) -> None:
    found = check(made["text"])
    assert EVIL not in made["text"]
    assert any(EVIL in text for _, text in found.texts), "the task's name is shown"


def test_tokens_are_shown_with_who_produced_them(made: dict[str, Any]) -> None:
    found = Page(made["text"])
    shown = [attributes["class"] for tag, attributes in found.tags if tag == "b"]
    assert {"t", "d", "p0"} <= set(shown)
    rows = [row for row in made["rows"] if row["concurrency"] == 1 and row["arm"] != "plain"]
    letters = "".join(each for row in rows for each in row["producers"])
    legend = 2 + 2  # target and drafted, and the two parts of the combination
    assert len(shown) == len(letters) + legend
    assert shown.count("p0") == letters.count("A") + 1 and shown.count("d") == letters.count("d") + 1
    text = "".join(text for tag, text in found.texts if tag == "b")
    answer = tiny_tokenizer().decode(rows[0]["ids"][0], skip_special_tokens=False)
    assert answer in text


def test_the_page_stays_small_whatever_is_in_it(made: dict[str, Any]) -> None:
    (row,) = [row for row in made["rows"] if row["concurrency"] == 1 and row["unit"] == 0 and row["arm"] == "plain"]
    rows = []
    marks = tiny_tokenizer()("<" * 20_000)["input_ids"]
    for unit in range(300):
        for arm in ("plain", *METHODS):
            changed = {"arm": arm, "unit": unit, "task": f"{EVIL} {unit}", "ids": [marks], "prompts": [unit]}
            rows.append(Row.from_json({**row, **changed, "producers": ["t" * len(marks)], "differences": [None]}))
    samples = samples_of(rows, tiny_tokenizer())
    assert samples, "some are shown"
    settings, machine = made["settings"], {"device": "a machine"}
    text = page(summarise(rows), settings, machine, {}, samples)
    check(text)
    assert "&lt;&lt;" in text or "&lt;</b>" in text


def test_a_page_of_nothing_and_one_of_a_single_unit_are_whole(made: dict[str, Any]) -> None:
    check(page([], made["settings"], {}, {}, []))
    rows = [Row.from_json(row) for row in made["rows"] if row["concurrency"] == 1 and row["unit"] == 0]
    check(page(summarise(rows), made["settings"], {}, made["parts"], samples_of(rows, tiny_tokenizer())))
    bare = [dataclasses.replace(row, forwards=[], accepted_lengths=[]) for row in rows]
    check(page(summarise(bare), made["settings"], {}, made["parts"], []))


@pytest.mark.parametrize("most", [0.3, 1.0, 7.0, 249.0, 1e-9, 3.3e6])
def test_ticks_are_round_and_reach_far_enough(most: float) -> None:
    marks = svg.ticks(most)
    assert marks[0] == 0 and marks[-1] >= most * (1 - 1e-9) and 2 <= len(marks) <= 8
    assert marks[-2] < most
    assert all(len(f"{mark:g}") <= 7 for mark in marks)


def test_an_interval_that_leaves_the_picture_squeezes_no_bar() -> None:
    bars = [svg.Bar(1.0, 0.5, 2.0, "a"), svg.Bar(2.0, 0.1, 90.0, "b")]
    drawn = svg.grouped_bars(["one"], [(0, bars[:1]), (1, bars[1:])], svg.Axis("x", 1.0))
    heights = [
        numbers(each)[0]
        for each in re.findall(r'<rect [^>]*height="[^"]+"', drawn)
        for each in [each.split("height=")[1]]
    ]
    assert heights[1] == pytest.approx(2 * heights[0], rel=0.01) and heights[1] > 100


CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed")
def test_a_browser_opens_the_page_without_an_error(made: dict[str, Any], tmp_path: Path) -> None:
    shot = tmp_path / "page.png"
    arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=1100,6000"]
    done = subprocess.run(
        [CHROMIUM, *arguments, f"--user-data-dir={tmp_path / 'user'}", f"--screenshot={shot}", made["file"].as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0 and shot.stat().st_size > 10_000, done.stderr
    assert not re.search(r"CONSOLE|Refused|Failed to load", done.stderr), done.stderr
