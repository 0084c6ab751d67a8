"""What a Medusa checkpoint holds: heads, layers, sizes and maps, from tensor names and config.json; no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from specdec_nn.checkpoints.maps import ids_problem
from specdec_nn.checkpoints.names import canonical_names
from specdec_nn.checkpoints.reader import INCOMPLETE, OTHER_TARGET, CheckpointReader, Names, listed
from specdec_plugin_medusa.settings import names_medusa, num_heads, num_layers, own_keys

PREFIXES: Final = ("medusa_heads.", "medusa_head.", "module.")
TOKEN_MAP: Final = "token_map"
WEIGHT: Final = "blocks.{}.layers.{}.weight"
HEAD: Final = "lm_heads.{}.weight"
_QUANTIZED: Final = re.compile(r"(scale|scales|zero_point|qweight|qzeros|scale_inv|weight_packed)$")
_NEW: Final = re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)|lm_heads\.(\d+)\.(weight|bias)|token_map")
_OLD: Final = re.compile(r"(\d+)\.(\d+)\.(linear\.)?(weight|bias)")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A checkpoint that can be built.

    layers       (number of heads) tuples of the stored layer that stands for each residual layer of the head
    shared_head  lm_heads.0 serves all heads
    rows         ids that a head knows; beyond the target's are rows of padding, which are never drafted
    mapped       token_map says which ids of the target they are
    logit_scale  factor of the logits
    notes        where config.json and tensors disagree and the tensors win, in words
    """

    layers: tuple[tuple[int, ...], ...]
    shared_head: bool
    rows: int
    mapped: bool
    logit_scale: float
    notes: tuple[str, ...]

    @property
    def heads(self) -> int:
        """The number of heads."""
        return len(self.layers)


class MedusaReader(CheckpointReader[Layout]):
    """One look at Medusa heads of either generation; canonical names are vLLM's."""

    original = True

    @classmethod
    def canonical(cls, names: Iterable[str]) -> Names:
        """Return canonical names; where some stand under one of the method's prefixes, the others are the target's."""
        names = list(names)
        return canonical_names([name for name in names if name.startswith(PREFIXES[:2])] or names, _spell)

    def look(self) -> Layout | None:
        """Check heads against config.json and the target."""
        self._set_stored()
        if self.problems or not self._is_medusa():
            return None
        shared = self.config.get("original_lm_head") is True
        heads = 1 + max({head for head, _ in self.layers} | (set() if shared else self.heads), default=0)
        layers = tuple(self._layers(head) for head in range(heads))
        if not self._is_whole(heads, shared) or not self._has_target_width():
            return None
        scale = self.config.get("logit_scale", 1.0)
        if not isinstance(scale, (int, float)) or isinstance(scale, bool) or not 0 < scale < float("inf"):
            self.wrong(f"its config.json has logit_scale {scale!r}, which is no positive number")
            scale = 1.0
        return Layout(
            layers=layers,
            shared_head=shared,
            rows=self._rows(),
            mapped=TOKEN_MAP in self,
            logit_scale=float(scale),
            notes=self._notes(heads, layers),
        )

    def _set_stored(self) -> None:
        """Find what is stored: `layers` (head, layer), `heads`, and `depth`, the layers of a head as old names say."""
        found = [match for match in map(_NEW.fullmatch, self.files) if match]
        self.layers = {(int(match[1]), int(match[2])) for match in found if match[3] == "weight"}
        self.heads = {int(match[4]) for match in found if match[5] == "weight"}
        depths = {}
        for name, file in self.files.items():
            old = _OLD.fullmatch(_without_prefix(file))
            if old and name.startswith("lm_heads."):
                depths[int(old[2])] = file
        if len(depths) > 1:
            (one, first), (other, second), *_ = sorted(depths.items())
            self.wrong(f"its heads have different numbers of layers: {first} says {one}, {second} says {other}")
        self.depth = next(iter(depths), None)

    def _is_medusa(self) -> bool:
        """Check that there are heads, in a form that can be read."""
        quantized = [name for name in self.others if self.shapes and _QUANTIZED.search(name)]
        if quantized:
            self.wrong(f"its heads are quantized ({quantized[0]})", "give heads in a floating-point dtype")
        elif not self.layers and not self.heads:
            kind = f"model_type {self.config.get('model_type')!r}, architectures {self.config.get('architectures')!r}"
            self.wrong(
                f"it has no Medusa heads, whose tensors are 0.0.linear.weight or blocks.0.layers.0.weight ({kind}), "
                "and the method is medusa",
                "name the method that this checkpoint is for, or give a checkpoint of Medusa heads",
            )
        return not self.problems

    def _layers(self, head: int) -> tuple[int, ...]:
        """Return the stored layer behind each residual layer of a head.

        Trainers of old files used one layer several times, and some files hold it once: then it is the lowest one.
        """
        stored = sorted(layer for h, layer in self.layers if h == head)
        if self.depth is None:
            return tuple(range(1 + max((layer for _, layer in self.layers), default=-1)))
        return tuple(layer if layer in stored or not stored else stored[0] for layer in range(self.depth))

    def _is_whole(self, heads: int, shared: bool) -> bool:
        """Check that every tensor of every head is there."""
        wanted = [WEIGHT.format(head, layer) for head in range(heads) for layer in self._layers(head)]
        said = num_layers(self.config)
        if self.depth is None and said is not None and self.layers:
            wanted += [WEIGHT.format(head, layer) for head in range(heads) for layer in range(said[1])]
        if self.config.get("medusa_fc_bias") is True:
            wanted += [name.removesuffix("weight") + "bias" for name in wanted]
        wanted += [HEAD.format(head) for head in (range(1) if shared else range(heads))]
        lacks_heads = self.missing(wanted) == [HEAD.format(head) for head in range(1, heads)]
        step = "if the first head serves all, its config.json must have original_lm_head true"
        return self.require(wanted, step if lacks_heads else INCOMPLETE)

    def _has_target_width(self) -> bool:
        """Check the shapes of everything that reads or writes the target's states."""
        width = self.target.hidden_size
        tensors = [name for name in self.shapes if name != TOKEN_MAP]
        expected = {
            name: (width if name.startswith("blocks.") else None, width)[: 1 + name.endswith("weight")]
            for name in tensors
        }
        return self.expect(expected, f"heads for a target of width {width} have", OTHER_TARGET)

    def _rows(self) -> int:
        """Check heads against each other, the map and the target's vocabulary; return how many ids a head knows."""
        heads = {self.shapes[name][0] for name in self.shapes if name.startswith("lm_heads.")}
        if len(heads) > 1:
            self.wrong(f"its heads have different numbers of rows: {sorted(heads)}")
        rows, vocabulary = max(heads), self.target.vocab_size
        cut, whole = self.config.get("truncated_vocab_size"), self.config.get("vocab_size")
        is_cut = isinstance(cut, int) and isinstance(whole, int) and cut < whole
        mapped = self.shapes.get(TOKEN_MAP)
        if mapped is not None:
            if len(mapped) != 1 or not 0 < mapped[0] <= rows:
                self.wrong(f"its token_map is {list(mapped)}, and its heads have {rows} rows")
            elif is_cut and cut != mapped[0]:
                self.wrong(f"its token_map has {mapped[0]} ids, and its config.json has truncated_vocab_size {cut}")
            else:
                # Rows beyond the map's are of the whole vocabulary, and the map picks some of them.
                known = min(vocabulary, rows) if rows > mapped[0] else vocabulary
                problem = ids_problem(TOKEN_MAP, self.integers(TOKEN_MAP) or (), known)
                if problem is not None:
                    self.wrong(problem, INCOMPLETE)
            return mapped[0] if mapped else 0
        if is_cut and rows < vocabulary:
            message = f"its heads have {rows} rows, the target {vocabulary} ids, and token_map between them is missing"
            self.wrong(message, INCOMPLETE)
        else:
            self.expect_table(self.files[HEAD.format(0)], rows, vocabulary)
        return rows

    def _notes(self, heads: int, layers: tuple[tuple[int, ...], ...]) -> tuple[str, ...]:
        pairs = (
            ("heads", num_heads(self.config), heads),
            ("layers a head", num_layers(self.config), len(layers[0])),
        )
        notes = [
            f"config.json has {said[0]} {said[1]}, and the tensors have {found} {what}"
            for what, said, found in pairs
            if said is not None and said[1] != found
        ]
        # A config.json of a language model: its own tensors stand beside the heads.
        config = self.config
        is_whole_model = "num_attention_heads" in config and not names_medusa(config) and bool(own_keys(config))
        if self.others and self.files and not is_whole_model:
            notes.append(f"these tensors belong to no head: {listed(self.others, 4)}")
        return tuple(notes)


def _without_prefix(name: str) -> str:
    for prefix in (*PREFIXES, *PREFIXES):  # in any order
        name = name.removeprefix(prefix)
    return name


def _spell(name: str) -> str | None:
    name = _without_prefix(name)
    old = _OLD.fullmatch(name)
    if old is None:
        return name if _NEW.fullmatch(name) else None
    return f"blocks.{old[1]}.layers.{old[2]}.{old[4]}" if old[3] else f"lm_heads.{old[1]}.{old[4]}"
