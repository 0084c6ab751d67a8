"""Keeps what goes wrong in a method away from the engine: counts it, says it once, and switches the method off."""

from __future__ import annotations

import logging
from typing import Final

from specdec_core.host.handed import OnlyErrors

# A child of vLLM's logger has its handlers and format without importing it.
logger: Final = logging.getLogger("vllm.specdec")

FAILURES: Final = 8


class Guard:
    """Failures of one method. After `most` in a row, without a success between them, `off` says why it stays off.

    failures  how many there were in all
    off       why the method is not called any more, None while it is
    """

    def __init__(self, method: str, most: int = FAILURES) -> None:
        """Begin with none."""
        self.failures = 0
        self.off: str | None = None
        self._method: Final = method
        self._most: Final = most
        self._in_a_row = 0

    def is_off(self) -> bool:
        """Say whether the method is not to be called any more."""
        return self.off is not None

    def call(self, call: str) -> OnlyErrors:
        """Return the context of one call of the method's object: nothing but an error comes out of it."""
        return OnlyErrors(f"method {self._method!r}", call)

    def failed(self, call: str, error: BaseException) -> None:
        """Count a failure; the first one is logged with its traceback, and so is the one that is too many."""
        self.failures += 1
        self._in_a_row += 1
        said = f"{call}: {type(error).__name__}: {error}"
        if self._in_a_row >= self._most and self.off is None:
            self.off = f"it failed {self._in_a_row} times in a row, the last time in {said}"
            logger.error("method %r is switched off until the engine restarts: %s", self._method, self.off)
        elif self.failures == 1:
            logger.warning(
                "method %r failed in %s; the engine decodes on without its drafts (later failures are only counted)",
                self._method,
                said,
                exc_info=error,
            )

    def succeeded(self) -> None:
        """Note a call that went well."""
        self._in_a_row = 0
