"""What an MLP speculator's checkpoint holds: heads, widths, ties, from tensor names and config.json; no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from specdec_core.errors import ConfigError
from specdec_core.sources import DraftSource, TargetInfo
from specdec_nn.checkpoints.names import Spelling
from specdec_nn.checkpoints.reader import INCOMPLETE, CheckpointReader, Names, listed
from specdec_nn.checkpoints.speculators import is_of_type
from specdec_plugin_mlp_speculator.settings import MODEL_TYPE, OTHER_TYPE, TOP_K, architectures, mistakes, spelled

TENSORS: Final = ("emb.{}.weight", "proj.{}.weight", "head.{}.weight", "ln.{}.weight", "ln.{}.bias")
_NAME: Final = re.compile(r"(emb|proj|head|ln)\.(\d+)\.(weight|bias)")
OTHER_TARGET: Final = "give a speculator that was trained for this target"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A checkpoint that can be built.

    files        name in the file by the name used here, which has no prefix
    n_predict    the number of heads
    tied         heads share all their tensors but the first projection
    scale_input  the target's state is normed, then divided by sqrt(2)
    inner        width of the state
    rows         ids that a head knows; beyond the target's are rows of padding, which are never drafted
    """

    files: Mapping[str, str]
    n_predict: int
    tied: bool
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
    """One look at an MLP speculator; config.json counts as it is in the file, under vLLM's keys."""

    spelling = Spelling(prefixes=("module.", "model.", "speculator."), pattern=_NAME)
    original = True
    what = "speculators"

    def __init__(self, draft: DraftSource, target: TargetInfo) -> None:
        """Read names and shapes, and the keys of config.json that trees need."""
        super().__init__(draft, target)
        self.config = spelled(self.config)
        self.tied = bool(self.config.get("tie_weights"))
        widths, kept = self.config.get(TOP_K), self.config.get("n_candidates")
        is_right = isinstance(widths, list) and widths and all(type(width) is int and width > 0 for width in widths)
        self.top_k = (
            tuple(widths) if is_right and isinstance(widths, list) else None
        )  # ids that each head of a tree adds
        self.n_candidates = kept if type(kept) is int and kept > 0 else None  # sequences that a tree keeps

    @classmethod
    def canonical(cls, names: Iterable[str]) -> Names:
        """Return canonical names, none for other checkpoints; raises ConfigError for tensors between a speculator's."""
        files, others = super().canonical(names)
        if "proj.0.weight" not in files or not any(name.startswith("emb.") for name in files):
            return {}, others
        if others:
            message = f"these tensors belong to no speculator that is built here: {listed(others, 4)}"
            raise ConfigError(message)
        return files, others

    def look(self) -> Layout | None:
        """Check names and shapes against config.json and the target."""
        if is_of_type(self.config, (OTHER_TYPE,)):
            self.wrong(
                f"it is a file of speculators' type {OTHER_TYPE}, of which that library published only the keys of "
                "config.json: no model, and no names of tensors",
                f'give a speculator as fms-extras or vLLM has it (model_type "{MODEL_TYPE}")',
            )
            return None
        if not self.files:
            kind = f"model_type {self.config.get('model_type')!r}, architectures {architectures(self.config)}"
            self.wrong(
                f"it has no MLP speculator, whose tensors are emb.0.weight, proj.0.weight, ... ({kind}), and the "
                "method is mlp_speculator",
                "name the method that this checkpoint is for, or give the checkpoint of a speculator",
            )
            return None
        for message in mistakes(self.config):
            self.wrong(message, "correct its config.json")
        n_predict = 0 if self.problems else self._n_predict()
        if self.problems or not self._is_whole(n_predict):
            return None
        inner = self._inner()
        rows = 0 if self.problems else self._rows(inner)
        scale_input = bool(self.config.get("scale_input"))
        return Layout(
            files=self.files, n_predict=n_predict, tied=self.tied, scale_input=scale_input, inner=inner, rows=rows
        )

    def _n_predict(self) -> int:
        """Return what config.json says, or else the number of heads that are stored one by one."""
        said = self.config.get("n_predict")
        stored = 1 + max(int(name.split(".")[1]) for name in self.files)
        if said is not None and stored > said:
            self.wrong(f"its config.json says n_predict {said}, and its tensors are those of {stored} heads")
        elif said is None and self.tied:
            self.wrong("its heads are tied, and its config.json does not say n_predict, their number")
        return int(said or stored)

    def _is_whole(self, n_predict: int) -> bool:
        """Check that every tensor of every head is there, of tied ones in any copy."""
        wanted = []
        for kind in TENSORS:
            copies = [[kind.format(head)] for head in range(n_predict)]
            if self.tied:  # all heads share one but for the first projection, which has another shape
                names = [name for (name,) in copies]
                copies = [names[:1], names[1:]] if kind.startswith("proj") else [names]
            wanted += [next((n for n in names if n in self), names[0]) for names in copies if names]
        only_first = not self.tied and all(int(name.split(".")[1]) < 2 for name in self.files)
        step = "if its heads share them, its config.json must say tie_weights true"
        return self.require(wanted, step if only_first else INCOMPLETE)

    def _inner(self) -> int:
        """Check the first projection, and return the width of the state."""
        width, name = self.target.hidden_size, "proj.0.weight"
        because = f"the target has states of width {width}, which make it"
        if not self.expect({name: (None, width)}, because, OTHER_TARGET):
            return 0
        inner, said = self.shapes[name][0], self.config.get("inner_dim")
        if said is not None and (said or width) != inner:
            self.wrong(f"its config.json says inner_dim {said}, and {self.files[name]} is {[inner, width]}")
        return inner

    def _rows(self, inner: int) -> int:
        """Check all other shapes, and return how many ids a head knows."""
        tables = [shape for name, shape in self.shapes.items() if name.startswith(("emb.", "head.")) and shape]
        rows = tables[0][0]
        shapes = {"emb": (rows, inner), "head": (rows, inner), "proj": (inner, inner), "ln": (inner,)}
        others = {name: shapes[name.partition(".")[0]] for name in self.files if name != "proj.0.weight"}
        self.expect(others, f"with a state of width {inner} and {rows} ids it would be", INCOMPLETE)
        self.expect_table("its table", rows, self.target.vocab_size)
        return rows
