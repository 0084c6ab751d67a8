"""Long texts and code that every Python has: the topics of `help`, docstrings, and functions of the standard library."""

from __future__ import annotations

import ast
import importlib.util
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Final

MODULES: Final = """\
abc argparse ast asyncio.queues asyncio.tasks base64 bdb bisect calendar cmd code codecs collections configparser
contextlib copy csv dataclasses datetime decimal difflib dis doctest email.message enum fileinput fnmatch fractions ftplib
functools getpass gettext glob graphlib gzip hashlib heapq hmac html.parser http.client http.cookies http.server imaplib
inspect ipaddress json.decoder json.encoder keyword linecache locale logging logging.handlers mailbox mimetypes netrc ntpath
numbers operator optparse os pathlib pdb pickle pickletools pkgutil platform plistlib poplib posixpath pprint profile pstats
queue quopri random reprlib rlcompleter sched secrets selectors shelve shlex shutil smtplib socket socketserver statistics
string struct subprocess tarfile tempfile textwrap threading timeit tokenize trace traceback types typing unittest.case
unittest.mock urllib.parse urllib.request uuid warnings wave weakref webbrowser xml.dom.minidom zipfile zipapp
""".split()
LEAST_PROSE: Final = 60  # words of a run of paragraphs
LEAST_PARAGRAPH: Final = 12  # words; shorter ones are headings and lists
LETTERS: Final = 0.8  # of the characters of prose are letters or spaces
CODE_LINES: Final = (5, 32)
LONGEST_CODE: Final = 1600  # characters


@dataclass(frozen=True)
class Library:
    """What was found: paragraphs of prose in runs that belong together, and the sources of functions."""

    prose: tuple[tuple[str, ...], ...] = ()
    functions: tuple[str, ...] = field(default=())


@cache
def library() -> Library:
    """Read the standard library, once in a process; the same in every process of one Python."""
    prose = [run for text in _topics() if (run := _paragraphs(text))]
    functions = []
    for name in MODULES:
        tree, source = _parsed(name)
        if tree is None:
            continue
        lines = source.splitlines()
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                run = _paragraphs(ast.get_docstring(node) or "")
                if sum(len(part.split()) for part in run) >= LEAST_PROSE:
                    prose.append(run)
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("__"):
                found = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                if CODE_LINES[0] <= found.count("\n") + 1 <= CODE_LINES[1] and len(found) < LONGEST_CODE:
                    functions.append(textwrap.dedent(found).rstrip())
    return Library(tuple(prose), tuple(functions))


def passage(rng: Random, words: int) -> str:
    """Return prose of the library of about so many words: neighbouring paragraphs, then those of another text."""
    runs = library().prose
    if not runs:
        return ""
    parts: list[str] = []
    count = 0
    for _ in range(12):
        run = rng.choice(runs)
        start = rng.randrange(len(run))
        for part in run[start:]:
            if count >= words:
                break
            parts.append(part)
            count += len(part.split())
        if count >= words:
            break
    return shortened("\n\n".join(parts), words)


def function(rng: Random) -> str:
    """Return the source of a function."""
    found = library().functions
    return rng.choice(found) if found else "def add(a, b):\n    return a + b"


def shortened(text: str, words: int) -> str:
    """Return the beginning of a text, of at most that many words, its line breaks kept."""
    pieces = re.findall(r"\S+\s*", text)
    return "".join(pieces[:words]).rstrip()


def _topics() -> Iterator[str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions of Python leave it out
        return
    yield from (topics[name] for name in sorted(topics))


def _paragraphs(text: str) -> tuple[str, ...]:
    """Return the paragraphs of a text, each in one line but for those that are indented, without marks of headings."""
    found = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = [line.rstrip() for line in block.splitlines() if not re.fullmatch(r"\s*[*=~^-]{3,}\s*", line)]
        if not lines:
            continue
        indented = sum(line.startswith("   ") for line in lines) > len(lines) / 2
        block = "\n".join(lines) if indented else " ".join(line.strip() for line in lines)
        letters = sum(c.isalpha() or c.isspace() for c in block)
        is_list = " -- " in block or "  " in block.strip()
        if letters > LETTERS * len(block) and len(block.split()) >= LEAST_PARAGRAPH and (indented or not is_list):
            found.append(block)
    return tuple(found)


def _parsed(name: str) -> tuple[ast.Module | None, str]:
    try:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            return None, ""
        source = Path(spec.origin).read_text(encoding="utf-8")
        return ast.parse(source), source
    except (ImportError, OSError, SyntaxError, ValueError):
        return None, ""
