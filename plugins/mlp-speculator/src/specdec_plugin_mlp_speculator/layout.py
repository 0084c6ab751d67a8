"""What an MLP speculator's checkpoint holds: heads, widths, ties, from tensor names and config.json; no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from specdec_core.config.padding import PADDING
from specdec_core.errors import ConfigError
from specdec_core.sources import DraftSource, Problem, TargetInfo
from specdec_plugin_mlp_speculator.settings import TOP_K, architectures, mistakes, spelled

Shapes = Mapping[str, tuple[int, ...]]

PREFIXES: Final = ("module.", "model.", "speculator.")
TENSORS: Final = ("emb.{}.weight", "proj.{}.weight", "head.{}.weight", "ln.{}.weight", "ln.{}.bias")
_NAME: Final = re.compile(r"(emb|proj|head|ln)\.(\d+)\.(weight|bias)")
NOT_WHOLE: Final = "the file is not whole; fetch it again"
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


class Reading:
    """One attempt to read a checkpoint; gathers everything that is wrong. config.json counts as it is in the file."""

    def __init__(self, draft: DraftSource, target: TargetInfo) -> None:
        """Look at names and shapes; nothing else is read."""
        self.draft, self.target = draft, target
        self.config: Mapping[str, Any] = spelled(draft.original.hf_config)
        self.problems: list[Problem] = []
        self.files: dict[str, str] = {}
        try:
            shapes = draft.tensor_shapes
            self.files = own_names(shapes)
            self.shapes: Shapes = {ours: shapes[name] for ours, name in self.files.items()}
        except (ValueError, ConfigError) as error:
            self.shapes = {}
            self._wrong(str(error))

    def layout(self) -> Layout | None:
        """Return the layout, None if `problems` says why not."""
        if self.problems or not self._is_speculator():
            return None
        for message in mistakes(self.config):
            self._wrong(message, "correct its config.json")
        n_predict = None if self.problems else self._n_predict()
        if n_predict is None or self.problems:
            return None
        self._check_whole(n_predict)
        if self.problems:
            return None
        inner = self._inner()
        rows = self._rows(inner)
        if self.problems:
            return None
        return Layout(
            files=self.files,
            n_predict=n_predict,
            tied=self._tied,
            scale_input=bool(self.config.get("scale_input")),
            inner=inner,
            rows=rows,
        )

    @property
    def top_k(self) -> tuple[int, ...] | None:
        """How many ids each head adds in trees, as config.json says; None if it does not."""
        said = self.config.get(TOP_K)
        is_right = isinstance(said, list) and said and all(type(width) is int and width > 0 for width in said)
        return tuple(said) if is_right and isinstance(said, list) else None

    @property
    def n_candidates(self) -> int | None:
        """How many sequences a tree keeps, as config.json says; None if it does not."""
        said = self.config.get("n_candidates")
        return said if type(said) is int and said > 0 else None

    @property
    def _tied(self) -> bool:
        return bool(self.config.get("tie_weights"))

    def _wrong(self, message: str, next_step: str = "") -> None:
        self.problems.append(Problem(key="model", message=f"{self.draft.model!r}: {message}", next_step=next_step))

    def _is_speculator(self) -> bool:
        if self.files:
            return True
        kind = f"model_type {self.config.get('model_type')!r}, architectures {architectures(self.config)}"
        self._wrong(
            f"it has no MLP speculator, whose tensors are emb.0.weight, proj.0.weight, ... ({kind}), and the method is "
            "mlp_speculator",
            "name the method that this checkpoint is for, or give the checkpoint of a speculator",
        )
        return False

    def _n_predict(self) -> int | None:
        """Return what config.json says, or else the number of heads that are stored one by one."""
        said = self.config.get("n_predict")
        stored = 1 + max(int(match[2]) for match in map(_NAME.fullmatch, self.files) if match)
        if said is not None and stored > said:
            self._wrong(f"its config.json says n_predict {said}, and its tensors are those of {stored} heads")
        elif said is None and self._tied:
            self._wrong("its heads are tied, and its config.json does not say n_predict, their number")
        return said if said is not None else stored

    def _check_whole(self, n_predict: int) -> None:
        """Check that every tensor of every head is there, of tied ones in any copy."""
        missing = []
        for kind in TENSORS:
            parts = [range(n_predict)]
            if self._tied:
                parts = [range(1), range(1, n_predict)] if kind.startswith("proj") else parts
                parts = [part for part in parts if len(part)]
                missing += [kind.format(p[0]) for p in parts if not any(kind.format(i) in self.files for i in p)]
            else:
                missing += [kind.format(i) for i in parts[0] if kind.format(i) not in self.files]
        if missing:
            only_first = all(f".{head}." not in name for name in self.files for head in range(2, n_predict))
            step = "if its heads share them, its config.json must say tie_weights true" if only_first else NOT_WHOLE
            self._wrong(f"these tensors are missing: {', '.join(missing)}", NOT_WHOLE if self._tied else step)

    def _inner(self) -> int:
        """Check the first projection, and return the width of the state."""
        shape, width = self.shapes["proj.0.weight"], self.target.hidden_size
        if len(shape) != 2 or shape[1] != width:
            self._wrong(
                f"{self.files['proj.0.weight']} is {list(shape)}, and the target has states of width {width}",
                OTHER_TARGET,
            )
            return 0
        said = self.config.get("inner_dim")
        if said is not None and (said or width) != shape[0]:
            self._wrong(f"its config.json says inner_dim {said}, and {self.files['proj.0.weight']} is {list(shape)}")
        return shape[0]

    def _rows(self, inner: int) -> int:
        """Check all other shapes, and return how many ids a head knows."""
        if not inner:
            return 0
        tables = {name: shape[0] for name, shape in self.shapes.items() if name.startswith(("emb.", "head.")) and shape}
        rows, vocabulary = next(iter(tables.values())), self.target.vocab_size
        for name, shape in self.shapes.items():
            kind = name.partition(".")[0]
            expected = {"emb": (rows, inner), "head": (rows, inner), "proj": (inner, inner), "ln": (inner,)}[kind]
            if name != "proj.0.weight" and shape != expected:
                self._wrong(
                    f"{self.files[name]} is {list(shape)}, and with a state of width {inner} and {rows} ids it would "
                    f"be {list(expected)}",
                    NOT_WHOLE,
                )
                return rows
        if abs(rows - vocabulary) > PADDING:
            self._wrong(
                f"it knows {rows} ids and the target {vocabulary}, which is more than padding explains", OTHER_TARGET
            )
        return rows


def own_names(names: Mapping[str, Any] | frozenset[str]) -> dict[str, str]:
    """Return the file's name of each tensor of a speculator by the name used here.

    Raises ValueError for two that claim one name, and for tensors that stand among a speculator's and are none.
    """
    found: dict[str, str] = {}
    strangers = []
    for name in sorted(names):
        ours = name
        for prefix in PREFIXES:
            ours = ours.removeprefix(prefix)
        if not _NAME.fullmatch(ours):
            strangers.append(name)
        elif ours in found:
            message = f"the tensors {found[ours]} and {name} are both {ours}"
            raise ValueError(message)
        else:
            found[ours] = name
    if "proj.0.weight" not in found or not any(name.startswith("emb.") for name in found):
        return {}
    if strangers:
        message = f"these tensors belong to no speculator that is built here: {', '.join(strangers[:4])}"
        raise ValueError(message)
    return found
