"""The verifier of this host, by name only: vLLM verifies by itself, so nothing is ever built here."""

from __future__ import annotations

from typing import Final, NoReturn

from specdec_core.errors import SpecdecError
from specdec_core.markers import hookimpl
from specdec_core.registry.catalog import Record

NAME: Final = "vllm"
RULE: Final = "standard"  # what vLLM's own rejection sampler does, under the name that configurations give it


@hookimpl
def specdec_make_verifier() -> NoReturn:
    """Refuse: the host does not ask."""
    message = "vLLM verifies drafts by itself; no verifier of specdec runs there"
    raise SpecdecError(message)


def record(version: str) -> Record:
    """Return the record by which `specdec_core.config.resolve` finds this verifier in vLLM, and nobody else does."""
    return Record("verifier", NAME, __name__, "specdec-vllm", version)
