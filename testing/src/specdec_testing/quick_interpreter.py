"""A pytest plugin that makes Triton's interpreter quicker, for processes in which nothing else is done with Triton.

Before each launch, and each call of one kernel's function by another, the interpreter looks through all of
`triton.language` for what it has to replace by its own: a quarter of the time of most kernels. Here that is done once.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any


def pytest_configure() -> None:
    """Replace what is to be replaced for good; nothing is changed where this Triton does it in another way."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    try:
        import triton.language as tl
        from triton.runtime import interpreter

        patch: Any = interpreter._patch_lang
        nothing: Any = interpreter._LangPatchScope
    except (ImportError, AttributeError):
        return
    patch(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda _: nothing()
