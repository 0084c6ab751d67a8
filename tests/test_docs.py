"""What the documentation says is so: its code runs, its output is what comes, its tables are those of the code."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib.metadata
import inspect
import io
import json
import logging
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from specdec_core import hookspecs
from specdec_core.cli import main as cli
from specdec_core.config.key_docs import rewrite
from specdec_core.config.speculative import COMMON_KEYS
from specdec_core.host import asked
from specdec_core.metrics import SpecMetrics
from specdec_core.registry import groups
from specdec_core.traits import MethodTraits
from specdec_engine import LLM, SamplingParams
from specdec_engine.hf_generate.arguments import REFUSED_FIELDS
from specdec_engine.hf_generate.kept_engine import ENGINE_ARGS
from specdec_engine.vllm_api import docs as vllm_docs
from specdec_plugin_eagle.options import EagleOptions
from specdec_plugin_ngram.options import NgramOptions
from specdec_plugin_suffix.options import SuffixOptions, SuffixRequestOptions
from specdec_testing import families
from specdec_testing.commands import run_specdec

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(Path(__file__).parent))
from doc_pages import anchors, fences, headings, links, prose, section, spans, table  # noqa: E402

README, DOCS = ROOT / "README.md", ROOT / "docs"
BENCHMARKS = ROOT / "benchmarks" / "README.md"
DISTRIBUTIONS = [
    project.parent
    for pattern in ("*/pyproject.toml", *(f"{name}/*/pyproject.toml" for name in ("plugins", "drafts", "integrations")))
    for project in sorted(ROOT.glob(pattern))
]
RUN = [README, *sorted(DOCS.glob("*.md")), *(folder / "README.md" for folder in DISTRIBUTIONS)]
CONTRIBUTING, MAP = ROOT / "CONTRIBUTING.md", DOCS / "index.md"
PAGES = [*RUN, CONTRIBUTING, BENCHMARKS, ROOT / "CHANGELOG.md"]
HOOKS = [name for name in dir(hookspecs) if hasattr(getattr(hookspecs, name), "specdec_spec")]
COMMANDS = ("", "bench", "generate", "replay", "explain", "plugins", "plugins list", "plugins show", "plugins doctor")
COMMANDS += ("train", "train collect", "train fit", "train evaluate", "train export")
COMMANDS += ("plugins new", "suffix", "suffix inspect", "suffix merge", "tune", "verify", "pair", "vllm")
NOT_RUN = ("make ",)  # commands of a page that would run for minutes
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A folder with a tiny model and its tokenizer."""
    from words import model_folder

    return model_folder(tmp_path_factory.mktemp("docs") / "model")


class Reader:
    """Follows one page in a folder of its own: writes its files, runs its blocks and commands, in order."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.monkeypatch = folder, monkeypatch
        self.namespace = {"__name__": "page"}
        self.path = []
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setenv("SPECDEC_KERNELS", "reference")

    def follow(self, page):
        for fence in fences(page):
            if fence.language in ("python", "toml", "yaml") and fence.file:
                self.write(fence)
            elif fence.language == "python":
                code = compile("\n" * fence.line + fence.text, str(page), "exec", dont_inherit=True)
                exec(code, self.namespace)
            elif fence.language == "console":
                for command, shown in fence.commands:
                    self.run(command, shown)

    def write(self, fence):
        file = self.folder / fence.file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(fence.text, encoding="utf-8")
        source = next((str(parent) for parent in file.parents if parent.name == "src"), None)
        if source is not None and source not in self.path:
            self.path.append(source)
            self.monkeypatch.syspath_prepend(source)
        if fence.language == "python":
            runpy.run_path(str(file))

    def run(self, command, shown):
        if command.startswith(NOT_RUN):
            return
        words = shlex.split(command)
        if words[:3] == ["pip", "install", "-e"]:
            return self.install(self.folder / words[3].partition("[")[0])
        if words[0] == "specdec":
            self.forget()
            done = run_specdec(*words[1:], **self.environment())
        else:
            assert words[0] == "python", command
            program, environment = [sys.executable, *words[1:]], {**os.environ, **self.environment()}
            done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
        assert_shown(shown, done.stdout, command)

    def environment(self):
        ours = {"SPECDEC_KERNELS": "reference", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
        return {**ours, "PYTHONPATH": os.pathsep.join(self.path)}

    def forget(self):
        """Forget the modules of the page, which a later part of it may have rewritten."""
        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(str(self.folder)):
                del sys.modules[name]

    def install(self, folder):
        """Do what an editable installation does, as far as it can be seen: metadata and source on the path."""
        tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        info = self.folder / "site" / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir(parents=True)
        headers = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}"]
        headers += [f"Requires-Dist: {requirement}" for requirement in project["dependencies"]]
        (info / "METADATA").write_text("\n".join(headers) + "\n")
        lines = []
        for group, points in project["entry-points"].items():
            lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        for place in (str(info.parent), str(folder / "src")):
            if place not in self.path:
                self.path.append(place)
                self.monkeypatch.syspath_prepend(place)


def assert_shown(shown, output, command):
    """Lines of a page must be the command's, next to each other; `...` stands for anything in a line, or for lines."""
    actual = [line for line in (" ".join(line.split()) for line in output.splitlines()) if line]
    at, anywhere = 0, False
    for line in filter(None, (" ".join(line.split()) for line in shown)):
        if line == "...":
            anywhere = True
            continue
        pattern = re.compile(".*".join(map(re.escape, line.split("..."))))
        places = range(at, len(actual)) if anywhere else range(at, min(at + 1, len(actual)))
        found = next((i for i in places if pattern.fullmatch(actual[i])), None)
        assert found is not None, f"$ {command}\ndoes not print {line!r} there, but:\n{output}"
        at, anywhere = found + 1, False
    assert not shown or anywhere or at == len(actual), f"$ {command}\nprints more than is shown:\n{output}"


# They install a distribution and run its tests, in processes of their own.
LONG_PAGES = (DOCS / "plugin-in-ten-minutes.md", DOCS / "a-head-in-an-hour.md")


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow) if page in LONG_PAGES else page for page in RUN],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_a_page_can_be_followed_from_top_to_bottom(page, model, tmp_path, monkeypatch, caplog):
    (tmp_path / "path" / "to").mkdir(parents=True)
    (tmp_path / "path" / "to" / "model").symlink_to(model)
    reader = Reader(tmp_path, monkeypatch)
    caplog.set_level(logging.NOTSET, "specdec_engine")  # which a page may set, and which is put back
    with contextlib.redirect_stdout(io.StringIO()):
        reader.follow(page)
    reader.forget()


@every_page
def test_every_fence_is_run_or_marked_as_text(page):
    for fence in fences(page):
        assert fence.language in ("python", "console", "text", "toml", "yaml"), f"line {fence.line}: {fence.language!r}"
        assert fence.language not in ("toml", "yaml") or fence.file, f"line {fence.line}: no name of a file"


@every_page
def test_relative_links_resolve(page):
    for link in links(page):
        file, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = page.parent / file if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_readme_opens_with_the_two_commands():
    first = fences(README)[0]
    assert [command for command, _ in first.commands] == ["make demo", "make test"]


def test_the_readme_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 130


@pytest.mark.parametrize("page", [CONTRIBUTING, MAP], ids=lambda page: page.name)
def test_every_path_that_is_named_exists(page):
    """A span is a path if it begins with a folder of the repository, or is a file in its root."""
    tops = {entry.name for entry in ROOT.iterdir() if not entry.name.startswith(".venv")}
    named = [span for span in spans(prose(page)) if span.rstrip("/").partition("/")[0] in tops]
    assert len(named) > 15
    for path in named:
        assert list(ROOT.glob(path.rstrip("/"))), path


def test_the_map_has_a_line_for_every_page_and_a_row_for_every_distribution():
    rows = [row[0] for row in table(MAP, "Every page")]
    linked = {(DOCS / link).resolve() for row in rows for link in re.findall(r"\]\(([^)]+)\)", row)}
    assert {page.resolve() for page in DOCS.glob("*.md")} - {MAP.resolve()} <= linked
    folders = {span for row in table(MAP, "How it fits together") for span in spans(f"`{row[0]}`")}
    for folder in DISTRIBUTIONS:
        name = str(folder.relative_to(ROOT))
        assert any(each == name or each.startswith(f"{name}/src/") for each in folders), name


def test_contributing_says_which_file_to_open_for_each_task():
    tasks = table(CONTRIBUTING, "Which file to open")
    assert len(tasks) == 11
    for task, files in tasks:
        assert [span for span in spans(files) if "/" in span], task


def test_a_name_that_contributing_puts_into_a_file_is_defined_there():
    named = re.findall(r"`(\w+)` in\s+`([\w./-]+\.py)`", prose(CONTRIBUTING))
    assert len(named) > 10
    for name, file in named:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^\s*(class |def )?{name}\b", text, re.MULTILINE), (name, file)


def test_make_knows_every_target_that_a_page_names():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = [command for page in PAGES for fence in fences(page) for command, _ in fence.commands]
    named += [span for page in PAGES for span in spans(prose(page))]
    for command in named:
        if command.startswith("make "):
            assert {word for word in command.split()[1:] if "=" not in word} <= targets, command


@pytest.fixture(scope="module")
def known_options():
    """The options that each command's help names."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        for command in COMMANDS:
            with contextlib.redirect_stdout(io.StringIO()) as text:
                assert cli.main([*command.split(), "--help"]) == 0
            found[command] = set(re.findall(r"--[a-z][a-z-]*", text.getvalue()))
    return found


@every_page
def test_help_names_every_option_and_command_of_a_page(page, known_options):
    in_console = [command for fence in fences(page) if fence.language == "console" for command, _ in fence.commands]
    for text in [*in_console, *spans(prose(page))]:
        words = text.split()
        options = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", text))
        if words[0] == "specdec" and len(words) > 1:
            command = max((c for c in COMMANDS if " ".join(words[1:]).startswith(c)), key=len)
            assert command or words[1].startswith("-") or words[1] == "plugins", text
            assert options <= known_options[command], text
        elif words[0].startswith("--") and page != BENCHMARKS:
            assert options <= set.union(*known_options.values()), text


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_described_with_its_arguments_and_its_answer(hook):
    page = DOCS / "hooks.md"
    signature = inspect.signature(getattr(hookspecs, hook))
    heading = f"{hook}({', '.join(signature.parameters)})"
    assert heading in headings(page)
    rows = table(page, heading)
    assert [row[:2] for row in rows] == [[p.name, str(p.annotation)] for p in signature.parameters.values()]
    assert f"Returns `{signature.return_annotation}`." in section(page, heading)
    assert "\nWithout the hook: " in section(page, heading)


def test_no_hook_is_described_that_is_none_and_every_group_of_entry_points_is_named():
    page = DOCS / "hooks.md"
    assert {h.partition("(")[0] for h in headings(page) if h.startswith("specdec_")} == set(HOOKS)
    assert {row[0] for row in table(page, "Hooks")} == {f"{prefix}.v{groups.API_MAJOR}" for prefix in groups.PREFIXES}


def test_every_key_of_a_configuration_is_described():
    page = DOCS / "configuration.md"
    assert tuple(row[0] for row in table(page, "Common keys")) == COMMON_KEYS
    assert rewrite(page.read_text(encoding="utf-8")) == page.read_text(encoding="utf-8"), (
        "run specdec_core.config.key_docs"
    )
    defaults = {row[0]: json.loads(row[1]) for row in table(page, "Options of ngram and ngram_gpu")}
    assert defaults == {name: field.default for name, field in NgramOptions.model_fields.items()}
    defaults = {row[0]: json.loads(row[1]) for row in table(page, "Options of suffix")}
    assert defaults == {name: field.default for name, field in SuffixOptions.model_fields.items()}
    defaults = {row[0]: json.loads(row[1]) for row in table(page, "Options of eagle and eagle3")}
    assert defaults == {name: field.default for name, field in EagleOptions.model_fields.items()}
    rows = table(DOCS / "suffix.md", "What a request may set")
    assert [row[0] for row in rows] == list(SuffixRequestOptions.model_fields)


def test_every_trait_is_described():
    rows = table(DOCS / "plugin-in-ten-minutes.md", "What the host may be told")
    assert [row[0] for row in rows] == [field.name for field in dataclasses.fields(MethodTraits)]


def test_the_engines_parameters_metrics_and_targets_are_those_described():
    page = DOCS / "engine.md"
    described = [name for row in table(page, "Parameters of LLM") for name in re.findall(r"\w+", row[0])]
    parameters = inspect.signature(LLM.__init__).parameters.values()
    assert described == [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name != "self"]
    rates = [name for name, value in vars(SpecMetrics).items() if isinstance(value, property)]
    counters = [field.name for field in dataclasses.fields(SpecMetrics)]
    assert {*rates, *counters} <= set(spans(section(page, "Metrics")))
    ((right, wrong),) = table(page, "Which targets run")
    by_version = ["gptj", "codegen"]  # which run depends on the version of transformers, as a sentence there says
    assert "`gptj` and `codegen` are refused before transformers 5.24" in page.read_text(encoding="utf-8")
    assert [spans(right), by_version + spans(wrong)] == [list(families.RIGHT), list(families.WRONG)]


def test_what_becomes_of_a_script_for_vllm_is_described_as_the_code_has_it():
    page = (DOCS / "vllm-scripts.md").read_text(encoding="utf-8")
    assert vllm_docs.rewrite(page) == page, "run specdec_engine.vllm_api.docs"


def test_every_sampling_parameter_is_described():
    described = [
        name for row in table(DOCS / "engine.md", "Sampling parameters") for name in re.findall(r"\w+", row[0])
    ]
    fields = [field.name for field in dataclasses.fields(SamplingParams)]
    assert sorted(described) == sorted(fields)


def test_what_every_request_may_ask_of_speculation_is_described():
    rows = table(DOCS / "engine.md", "Speculation of one request")
    assert [row[0] for row in rows] == [asked.OFF, asked.K]


def test_every_argument_of_generate_that_is_refused_is_described_with_its_reason():
    rows = table(DOCS / "engine.md", "Inside model.generate")
    said = {name: reason for names, reason in rows for name in re.findall(r"\w+", names)}
    assert {name: said[name] for name in REFUSED_FIELDS} == {n: reason for n, (_, reason) in REFUSED_FIELDS.items()}
    section_of_page = section(DOCS / "engine.md", "Inside model.generate")
    assert set(ENGINE_ARGS) <= set(spans(section_of_page))


def test_every_benchmark_is_described_with_options_that_it_has():
    for script in sorted(BENCHMARKS.parent.glob("*.py")):
        assert script.name in headings(BENCHMARKS)
        code = script.read_text(encoding="utf-8")
        known = set(re.findall(r'"(--[a-z-]+)"', code))
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.FunctionDef) and node.name == "main":
                known |= {f"--{argument.arg.replace('_', '-')}" for argument in node.args.args}
        commands = [command for fence in fences(BENCHMARKS) for command, _ in fence.commands if script.name in command]
        named = [*commands, *spans(section(BENCHMARKS, script.name))]
        assert commands and set(re.findall(r"(?<!\S)--[a-z-]+", " ".join(named))) <= known, script.name


def test_the_changelog_has_every_distribution_of_the_workspace():
    found = headings(ROOT / "CHANGELOG.md")
    for project in ROOT.glob("**/pyproject.toml"):
        name = re.search(r'^name = "(specdec-[\w-]+)"', project.read_text(encoding="utf-8"), re.MULTILINE)
        if name is not None and ".venv" not in project.parts:
            assert name[1] in found
            assert importlib.metadata.version(name[1])
