"""Why a text of the command line is no JSON: what shells do to quotes, and how to write it; reads no value."""

from __future__ import annotations

import re
from typing import Final

_BARE: Final = re.compile(r"""[{,]\s*[A-Za-z_][\w.-]*\s*:""")
_HOW: Final = "put a backslash before each inner quote, '{\\\"key\\\": 1}'"


def quoting_hint(text: str, otherwise: str = "") -> str:
    """Return what happened to the quotes of a JSON object on its way here, "" if nothing is known to have.

    `text` is what arrived, `otherwise` how to do without quotes.
    """
    how = f"{_HOW}, or {otherwise}" if otherwise else _HOW
    if text.startswith("'"):
        return f"; it begins with a single quote, which cmd does not take off: quote it with double quotes and {how}"
    if text.startswith("{") and '"' not in text and _BARE.search(text):
        return f"; its double quotes did not arrive, which Windows PowerShell and cmd take off: {how}"
    if text.startswith("{") and '"' not in text and not text.endswith("}"):
        return f"; only its beginning arrived, without double quotes, for a shell cut it at a space: {how}"
    return ""
