"""Whether Triton can keep compiled kernels; without a folder for them it fails in the middle of a run."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def check_cache() -> None:
    """Raise ImportError, with what to do, if Triton's cache folder cannot be written to.

    Called as a module of Triton kernels is imported, so that another backend of the op is taken instead. The folder is
    Triton's own: TRITON_CACHE_DIR, else .triton/cache in TRITON_HOME or in the user's home. Triton's keys hold the text
    of a kernel and of all that it calls, the GPU and the compiler, and it puts whole files in place.
    """
    if os.environ.get("TRITON_INTERPRET") == "1":
        return
    home = os.environ.get("TRITON_HOME") or os.path.expanduser("~/")
    folder = Path(os.environ.get("TRITON_CACHE_DIR") or os.path.join(home, ".triton", "cache"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        message = (
            f"Triton cannot keep compiled kernels in {folder} ({type(error).__name__}: {error.strerror or error}); "
            f"set TRITON_CACHE_DIR to a folder that can be written to"
        )
        raise ImportError(message) from error
