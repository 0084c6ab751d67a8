"""Keeps a plugin's errors away from the engine: counts them, logs the first, and may switch the method off."""

from __future__ import annotations

import logging
from typing import Final

from specdec_core.host.handed import OnlyErrors


class Containment:
    """Errors of one method's plugin.

    failures  how many there were
    step      the error of the current step as text, None if there was none; the host clears it
    off       why the method is not called any more, None while it is
    """

    def __init__(
        self,
        method: str,
        *,
        strict: bool = False,
        off_after: int | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        """Begin with none. `strict`: errors are raised. `off_after` failures in a row switch the method off."""
        self.failures = 0
        self.step: str | None = None
        self.off: str | None = None
        self._method: Final = method
        self._strict: Final = strict
        self._off_after: Final = off_after
        self._logger: Final = logger or logging.getLogger(__name__)
        self._in_a_row = 0

    def call(self, call: str) -> OnlyErrors:
        """Return the context of one call of the method's object: nothing but an error comes out of it."""
        return OnlyErrors(f"method {self._method!r}", call)

    def failed(self, call: str, error: Exception) -> None:
        """Count an error of a call; with `strict`, raise it."""
        if self._strict:
            raise error
        self.failures += 1
        self._in_a_row += 1
        self.step = f"{call}: {type(error).__name__}: {error}"
        if self.off is None and self._off_after is not None and self._in_a_row >= self._off_after:
            self.off = f"it failed {self._in_a_row} times in a row, the last time in {self.step}"
            self._logger.error("method %r is switched off until the engine restarts: %s", self._method, self.off)
        elif self.failures == 1:
            self._logger.warning(
                "method %r failed in %s; the step goes on without its drafts, and so will later ones (logged once; "
                "see the counter `failures`)",
                self._method,
                self.step,
                exc_info=error if self._off_after is not None else None,
            )

    def is_off(self) -> bool:
        """Return whether the method is not to be called any more."""
        return self.off is not None

    def succeeded(self) -> None:
        """Note a call that went well."""
        self._in_a_row = 0
