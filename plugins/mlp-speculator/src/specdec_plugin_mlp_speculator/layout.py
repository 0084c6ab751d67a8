"""What an MLP speculator's checkpoint holds: heads, widths, ties, from tensor names and config.json; no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from specdec_core.sources import DraftSource, TargetInfo
from specdec_nn.checkpoints.reader import INCOMPLETE, CheckpointReader, Names, Shape
from specdec_nn.checkpoints.speculators import is_of_type
from specdec_plugin_mlp_speculator import names
from specdec_plugin_mlp_speculator.names import TENSORS
from specdec_plugin_mlp_speculator.settings import (
    LSTM,
    MODEL_TYPE,
    OTHER_TYPE,
    RECURRENCE,
    RNN,
    TOP_K,
    architectures,
    mistakes,
    spelled,
)

OTHER_TARGET: Final = "give a speculator that was trained for this target"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A checkpoint that can be built.

    files        name in the file by the name used here, which has no prefix
    n_predict    the number of heads
    tied         heads share all their tensors but the first projection
    lstm         one cell with a second state in place of heads (Arctic's "sum_lstm")
    scale_input  the target's state is normed, then divided by sqrt(2)
    inner        width of the state
    rows         ids that a head knows; beyond the target's are rows of padding, which are never drafted
    """

    files: Mapping[str, str]
    n_predict: int
    tied: bool
    lstm: bool
    scale_input: bool
    inner: int
    rows: int

    @property
    def embedding_factor(self) -> float:
        """How much of an id's embedding is added to the state (arXiv 2404.19124)."""
        return embedding_factor(self.n_predict, self.inner)

    def name(self, kind: str, head: int) -> str:
        """Return the stored tensor that is `kind` ("emb.{}.weight", ...) for a head; of tied ones the lowest."""
        if not self.tied:
            return kind.format(head)
        least = 1 if kind.startswith("proj") and head > 0 else 0
        stored = [i for i in range(least, self.n_predict) if kind.format(i) in self.files]
        return kind.format(0 if kind.startswith("proj") and head == 0 else stored[0])

    def tensors(self, depth: int) -> set[str]:
        """Return the names of all tensors that the first `depth` ids are drafted with."""
        if not self.lstm:
            return {self.name(kind, head) for kind in TENSORS for head in range(depth)}
        projections = {name for gates in names.PROJECTIONS[:depth] for name in gates}
        return {names.TABLE, *names.CELL_NORM, *names.STATE_NORM, *projections, self.name(TENSORS[2], 0)}


def state_weight(n_predict: int) -> float:
    """Return sw: with it, half of the last state comes from the target's."""
    return math.pow(0.5, 0.5 / n_predict)


def embedding_weight(n_predict: int, inner: int) -> float:
    """Return ew, the weight of embeddings that belongs to sw."""
    return math.sqrt((1 - state_weight(n_predict) ** 2) * inner / 2)


def embedding_factor(n_predict: int, inner: int) -> float:
    """Return ew / sw."""
    return embedding_weight(n_predict, inner) / state_weight(n_predict)


class SpeculatorReader(CheckpointReader[Layout]):
    """One look at an MLP or LSTM speculator; config.json counts as it is in the file, under vLLM's keys."""

    original = True
    what = "speculators"

    def __init__(self, draft: DraftSource, target: TargetInfo) -> None:
        """Read names and shapes, and the keys of config.json that trees need."""
        super().__init__(draft, target)
        self.config = spelled(self.config)
        self.tied, self.lstm = bool(self.config.get("tie_weights")), names.is_lstm(self.files)
        widths, kept = self.config.get(TOP_K), self.config.get("n_candidates")
        is_right = isinstance(widths, list) and widths and all(type(width) is int and width > 0 for width in widths)
        self.top_k = (
            tuple(widths) if is_right and isinstance(widths, list) else None
        )  # ids that each head of a tree adds
        self.n_candidates = kept if type(kept) is int and kept > 0 else None  # sequences that a tree keeps

    @classmethod
    def canonical(cls, files: Iterable[str]) -> Names:
        """Return canonical names, none for other checkpoints; raises ConfigError for tensors between a speculator's."""
        return names.canonical(files)

    def look(self) -> Layout | None:
        """Check names and shapes against config.json and the target."""
        if not self._is_speculator():
            return None
        for message in mistakes(self.config):
            self.wrong(message, "correct its config.json")
        self._check_recurrence()
        self._check_target()
        n_predict = 0 if self.problems else self._n_predict()
        if self.problems or not self._is_whole(n_predict):
            return None
        inner = self._inner()
        rows = 0 if self.problems else self._rows(inner)
        return Layout(
            files=self.files,
            n_predict=n_predict,
            tied=self.tied,
            lstm=self.lstm,
            scale_input=bool(self.config.get("scale_input")),
            inner=inner,
            rows=rows,
        )

    def _is_speculator(self) -> bool:
        if is_of_type(self.config, (OTHER_TYPE,)):
            self.wrong(
                f"it is a file of speculators' type {OTHER_TYPE}, of which that library published only the keys of "
                "config.json: no model, and no names of tensors",
                f'give a speculator as fms-extras or vLLM has it (model_type "{MODEL_TYPE}")',
            )
        elif not self.files:
            kind = f"model_type {self.config.get('model_type')!r}, architectures {architectures(self.config)}"
            self.wrong(
                f"it has no MLP speculator, whose tensors are emb.0.weight, proj.0.weight, ... ({kind}), and the "
                "method is mlp_speculator",
                "name the method that this checkpoint is for, or give the checkpoint of a speculator",
            )
        return not self.problems

    def _check_recurrence(self) -> None:
        """Check that config.json and tensors name the same recurrence, and that an LSTM's tables are one."""
        said = self.config.get(RECURRENCE)
        if (said == LSTM) != self.lstm and said in (None, RNN, LSTM):
            found = LSTM if self.lstm else RNN
            self.wrong(f"its config.json has {RECURRENCE} {said!r}, and its tensors are those of {found!r}")
        for key in ("tie_weights", "tie_lstm_embs") if self.lstm else ():
            if self.config.get(key) is not True:
                self.wrong(
                    f"its config.json has {key} {self.config.get(key)!r}, and LSTM speculators are built here with "
                    f"{key} true: one cell for all ids, one table for all its gates"
                )

    def _check_target(self) -> None:
        """Check the classes of targets that it names, and the width of their states."""
        named, own = self.config.get("base_model_archs"), self.target.hf_config.get("architectures")
        if named and own and not set(named) & set(own):
            self.wrong(
                f"it was trained for targets of the classes {list(named)} (base_model_archs), and this one is of "
                f"{list(own)}",
                f"{OTHER_TARGET}; if it was, add the class to base_model_archs in its config.json",
            )
        width = self.config.get("input_hidden_dim")
        if type(width) is int and width != self.target.hidden_size:
            self.wrong(f"it was made for a target of width {width}, and this one has {self.target.hidden_size}")

    def _n_predict(self) -> int:
        """Return what config.json has, or else the number of heads that are stored one by one."""
        said = self.config.get("n_predict")
        numbered = [name for name in self.files if name.startswith("head.") or not self.lstm]
        stored = 1 + max((int(name.split(".")[1]) for name in numbered), default=0)
        if said is not None and stored > said:
            self.wrong(f"its config.json has n_predict {said}, and its tensors are those of {stored} heads")
        elif said is None and self.tied:
            self.wrong("its heads are tied, and its config.json has no n_predict, their number")
        return int(said or stored)

    def _is_whole(self, n_predict: int) -> bool:
        """Check that every tensor of every head is there, of tied ones in any copy."""
        wanted = []
        for kind in TENSORS if not self.lstm else TENSORS[2:3]:
            copies = [[kind.format(head)] for head in range(n_predict)]
            if self.tied:  # all heads share one but for the first projection, which has another shape
                stored = [name for (name,) in copies]
                copies = [stored[:1], stored[1:]] if kind.startswith("proj") else [stored]
            wanted += [next((n for n in stored if n in self), stored[0]) for stored in copies if stored]
        if self.lstm:
            projections = [name for gates in names.PROJECTIONS[:n_predict] for name in gates]
            wanted += [names.TABLE, *projections, *names.CELL_NORM, *names.STATE_NORM]
        only_first = not self.tied and all(int(name.split(".")[1]) < 2 for name in self.files)
        step = "if its heads share them, its config.json must have tie_weights true"
        return self.require(wanted, step if only_first else INCOMPLETE)

    def _inner(self) -> int:
        """Check the first projection, and return the width of the state."""
        width, first = self.target.hidden_size, names.FIRST_OF_LSTM if self.lstm else names.FIRST
        because = f"the target has states of width {width}, which make it"
        if not self.expect({first: (None, width)}, because, OTHER_TARGET):
            return 0
        inner = self.shapes[first][0]
        is_arctic = self.config.get("input_hidden_dim") is not None  # else emb_dim is the target's width
        for key in ("inner_dim", "proj_dim", *(("emb_dim",) if is_arctic else ())):
            said = self.config.get(key)
            if said is not None and (said or width) != inner:
                self.wrong(f"its config.json has {key} {said}, and {self.files[first]} is {[inner, width]}")
        return inner

    def _rows(self, inner: int) -> int:
        """Check all other shapes, and return how many ids a head knows."""
        tables = [shape for name, shape in self.shapes.items() if name.startswith(("emb.", "head.")) and shape]
        rows, width = tables[0][0], self.target.hidden_size
        shapes: dict[str, Shape] = {"emb": (rows, inner), "head": (rows, inner), "ln": (inner,)}
        others = {name: shapes[part] for name in self.files if (part := kind_of(name)) != "proj"}
        others |= {name: (inner, width if ".0." in name else inner) for name in self.files if kind_of(name) == "proj"}
        self.expect(others, f"with a state of width {inner} and {rows} ids it would be", INCOMPLETE)
        self.expect_table("its table", rows, self.target.vocab_size)
        return rows


def kind_of(name: str) -> str:
    """Return what a tensor is, of whichever gate: "emb", "proj", "head" or "ln"."""
    return name.partition(".")[0].rpartition("_")[2]
