"""Runs the command `specdec` inside this process, for tests of what it prints; it starts no program."""

from __future__ import annotations

import contextlib
import importlib
import io
import subprocess
import sys
import traceback
import warnings
from typing import Any
from unittest import mock

from specdec_core.cli.main import main


def run_specdec(*arguments: Any, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Return the exit code and the two outputs of `specdec ARGUMENTS`, as a process of its own would give them.

    The environment variables hold for this call only, warnings are shown as by a fresh interpreter, and what escapes
    becomes a traceback on standard error with exit code 1. Modules that the command imports stay imported: what a
    command imports, or does with file descriptors, needs a process of its own.
    """
    importlib.invalidate_caches()  # a distribution may have been written since the last call
    out, err = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict("os.environ", environment))
        stack.enter_context(mock.patch.object(sys, "stdin", io.StringIO(stdin)))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.enter_context(warnings.catch_warnings())
        warnings.resetwarnings()
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            code: Any = main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except Exception:
            traceback.print_exc()
            code = 1
    return subprocess.CompletedProcess(list(map(str, arguments)), code, out.getvalue(), err.getvalue())
