"""Files of prompts as people have them: a line is a prompt whatever is in it, and an error says where it is."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from specdec_core.errors import RequestError
from specdec_engine.text.prompt_files import read_prompts

ODD = "a\u2028b\x0bc\x85d\x1ce"  # characters at which str.splitlines would cut


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_line_is_a_prompt_whatever_stands_in_it(end: str, mark: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes(f"{mark}{ODD}{end}{end}  the caf\u00e9{end}last".encode())
    assert read_prompts(None, file) == [ODD, "  the caf\u00e9", "last"]
    lines = tmp_path / "prompts.jsonl"
    lines.write_bytes(f'{mark}{{"prompt": "{ODD[:3]}"}}{end}{{"turns": ["two\\nlines", "x"]}}{end}'.encode())
    assert read_prompts(None, lines) == [ODD[:3], "two\nlines"]


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.txt", b"one\n\ncaf\xe9\n", "line 3: byte 0xe9 at column 4 is not UTF-8; it looks like Latin-1"),
        ("a.txt", "one\n".encode("utf-16"), "is text in UTF-16"),
        ("a.txt", b"\n \n", "the file has no prompts in it"),
        ("a.jsonl", b'{"prompt": "one"}\n\n{"prompt": \n', "line 3 (prompt 1) is not valid JSON"),
        ("a.jsonl", b'{"prompt": "one"}\n["x"]\n', "line 2 (prompt 1): expected a JSON object"),
        ("a.jsonl", b'{"prompt": "a\\ud83d cat"}\n', "line 1 (prompt 0) has a lone surrogate, \\ud83d, at index 1"),
    ],
)
def test_an_error_names_file_line_and_prompt(name: str, data: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(data)
    with pytest.raises(RequestError, match=f"^--prompts {re.escape(str(file))}.*{re.escape(said)}"):
        read_prompts(None, file)


def test_standard_input_is_one_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    def reading(data: bytes) -> list[str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))
        return read_prompts(None, None)

    assert reading("\ufeffthe caf\u00e9\r\nis open\r\n".encode()) == ["the caf\u00e9\nis open"]
    with pytest.raises(RequestError, match="standard input, line 2: byte 0xe9"):
        reading(b"one\ncaf\xe9")
    with pytest.raises(RequestError, match="no prompt"):
        reading(b"\n")


def test_a_prompt_of_the_command_line_that_is_no_utf8_is_named() -> None:
    with pytest.raises(RequestError, match=r"--prompt, prompt 1 has a lone surrogate.*bytes that are not UTF-8"):
        read_prompts(["one", "caf\udce9"], None)
