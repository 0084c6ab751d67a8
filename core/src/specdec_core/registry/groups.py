"""Names of the entry-point groups; a group carries the kind of thing and the major version of the hook API."""

from __future__ import annotations

from typing import Final, Literal

Kind = Literal["proposer", "verifier", "draft", "kernel", "alias", "extension", "command"]

API_MAJOR: Final = 1
SPOKEN: Final = (API_MAJOR,)  # majors whose plugins this core loads, each by its own hook specifications
PREFIXES: Final[dict[str, Kind]] = {
    "specdec.proposers": "proposer",
    "specdec.verifiers": "verifier",
    "specdec.drafts": "draft",
    "specdec.kernels": "kernel",
    "specdec.aliases": "alias",
    "specdec.extensions": "extension",
    "specdec.commands": "command",
}
PROPOSERS: Final = "specdec.proposers.v1"
VERIFIERS: Final = "specdec.verifiers.v1"
DRAFTS: Final = "specdec.drafts.v1"
KERNELS: Final = "specdec.kernels.v1"
ALIASES: Final = "specdec.aliases.v1"
EXTENSIONS: Final = "specdec.extensions.v1"
COMMANDS: Final = "specdec.commands.v1"


def parse_group(group: str) -> tuple[Kind, int] | None:
    """Split `specdec.proposers.v2` into ("proposer", 2); None for a group that is not ours."""
    prefix, dot, version = group.rpartition(".v")
    kind = PREFIXES.get(prefix)
    if not dot or kind is None or not version.isdigit():
        return None
    return kind, int(version)


def group_of(kind: Kind, major: int) -> str:
    """Return the name of the group of a kind for a major version: "specdec.proposers.v2"."""
    return next(f"{prefix}.v{major}" for prefix, each in PREFIXES.items() if each == kind)
