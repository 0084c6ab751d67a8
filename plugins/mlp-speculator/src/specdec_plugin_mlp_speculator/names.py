"""Names of a speculator's tensors, MLP or LSTM, and the one spelling that is used here; no shapes, no torch."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from specdec_core.errors import ConfigError
from specdec_nn.checkpoints.names import Spelling, canonical_names
from specdec_nn.checkpoints.reader import Names, listed

TENSORS: Final = ("emb.{}.weight", "proj.{}.weight", "head.{}.weight", "ln.{}.weight", "ln.{}.bias")
FIRST: Final = "proj.0.weight"  # of an MLP speculator

# Of Arctic's LSTM speculators; in this order a projection's rows stand one below the other.
GATES: Final = ("forget", "input", "output", "cell")
TABLE: Final = "forget_emb.0.weight"
COPIES: Final = tuple(f"{gate}_emb.0.weight" for gate in GATES[1:])  # of tied tables, which files may hold as well
PROJECTIONS: Final = tuple(tuple(f"{gate}_proj.{i}.weight" for gate in GATES) for i in range(2))
CELL_NORM: Final = ("cell_ln.0.weight", "cell_ln.0.bias")
STATE_NORM: Final = ("state_ln.0.weight", "state_ln.0.bias")
FIRST_OF_LSTM: Final = PROJECTIONS[0][0]

_MLP: Final = re.compile(r"(emb|proj|head|ln)\.\d+\.(weight|bias)")
_LSTM: Final = re.compile(r"(forget|input|output|cell)_(emb\.0|proj\.[01])\.weight|(cell|state)_ln\.0\.(weight|bias)")
_HEAD: Final = re.compile(r"head\.\d+\.weight")
# Arctic's trainer may keep each part as a sequence of layers, of which the first is the part itself.
_IN_SEQUENCE: Final = re.compile(r"(emb|proj|ln)\.(\d+)\.0\.(weight|bias)")
_PREFIXES: Final = Spelling(prefixes=("module.", "model.", "speculator."))


def is_lstm(files: Collection[str]) -> bool:
    """Return whether these are canonical names of an LSTM speculator."""
    return FIRST_OF_LSTM in files


def spell(name: str) -> str | None:
    """Return the canonical name of a tensor, None for one of no speculator."""
    plain = _IN_SEQUENCE.sub(r"\1.\2.\3", _PREFIXES(name) or "")
    return plain if _MLP.fullmatch(plain) or _LSTM.fullmatch(plain) else None


def canonical(names: Iterable[str]) -> Names:
    """Return canonical names, none for other checkpoints; raises ConfigError for tensors between a speculator's."""
    files, others = canonical_names(names, spell)
    if is_lstm(files):
        mixed = [name for name in files if not (_LSTM.fullmatch(name) or _HEAD.fullmatch(name))]
    elif FIRST in files and any(name.startswith("emb.") for name in files):
        mixed = [name for name in files if not _MLP.fullmatch(name)]
    else:
        return {}, others
    others = (*others, *(files[name] for name in mixed))
    if others:
        message = f"these tensors belong to no speculator that is built here: {listed(others, 4)}"
        raise ConfigError(message)
    return files, others


def evidence(files: Collection[str]) -> tuple[str, str]:
    """Return the two canonical names that show a speculator."""
    if is_lstm(files):
        return TABLE if TABLE in files else FIRST_OF_LSTM, FIRST_OF_LSTM
    return min(name for name in files if name.startswith("emb.")), FIRST
