"""What a command prints is never lost to the encoding of its output."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from specdec_core.cli import main as cli
from specdec_core.config.parse import load_mapping
from specdec_core.errors import ConfigError

SAID = "caf\u00e9 \u20ac \u2192 \U0001f600 \udce9"


class Saying:
    HELP = "says something"

    @staticmethod
    def command(args: list[str]) -> int:
        print(SAID)
        print(SAID, file=sys.stderr)
        return 0


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("ascii", "caf\\xe9 \\u20ac \\u2192 \\U0001f600 \\udce9"),
        ("cp1252", "caf\u00e9 \u20ac \\u2192 \\U0001f600 \\udce9"),
        ("utf-8", "caf\u00e9 \u20ac \u2192 \U0001f600 \\udce9"),
    ],
)
def test_characters_that_the_encoding_lacks_are_escaped(
    encoding: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, error = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", error)
    monkeypatch.setattr(cli, "_dispatch", Saying.command)
    assert cli.main(["saying"]) == 0
    for stream in (out, error):
        stream.flush()
        written: Any = stream.buffer
        assert written.getvalue().decode(encoding) == shown + "\n"
        assert stream.errors == "strict"


@pytest.mark.parametrize("name", ["spec.json", "spec.yaml"])
def test_a_file_of_a_configuration_may_begin_with_a_byte_order_mark(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text('{"method": "ngram"}', encoding="utf-8-sig")
    assert load_mapping(f"@{file}") == {"method": "ngram"}
    file.write_text('{"method": "ngram"}', encoding="utf-16")
    with pytest.raises(ConfigError, match="UTF-16"):
        load_mapping(f"@{file}")
    file.write_bytes(b'{"method":\n "\xe9"}')
    with pytest.raises(ConfigError, match="line 2: byte 0xe9 at column 3"):
        load_mapping(file)
