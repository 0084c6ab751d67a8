"""What a Medusa checkpoint holds: heads, layers, sizes and maps, from tensor names and config.json; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from specdec_core.config.padding import PADDING
from specdec_core.errors import ConfigError
from specdec_core.sources import DraftSource, Problem, TargetInfo
from specdec_plugin_medusa.names import QUANTIZED, TOKEN_MAP, Names, spelled
from specdec_plugin_medusa.settings import names_medusa, num_heads, num_layers, own_keys

Shapes = Mapping[str, tuple[int, ...]]

WEIGHT: Final = "blocks.{}.layers.{}.weight"
HEAD: Final = "lm_heads.{}.weight"
NOT_WHOLE: Final = "the file is not whole; fetch it again"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A checkpoint that can be built.

    files        name in the file by the name used here
    layers       (number of heads) tuples of the stored layer that stands for each residual layer of the head
    shared_head  lm_heads.0 serves all heads
    rows         ids that a head knows; beyond the target's are rows of padding, which are never drafted
    mapped       token_map says which ids of the target they are
    logit_scale  factor of the logits
    notes        where config.json and tensors disagree and the tensors win, in words
    """

    files: Mapping[str, str]
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


class Reading:
    """One attempt to read a checkpoint; gathers everything that is wrong. config.json counts as it is in the file."""

    def __init__(self, draft: DraftSource, target: TargetInfo) -> None:
        """Look at names and shapes; nothing else is read."""
        self.draft, self.target = draft, target
        self.config = draft.original.hf_config
        self.problems: list[Problem] = []
        try:
            shapes = draft.tensor_shapes
            self.names = spelled(shapes)
            self.shapes: Shapes = {ours: shapes[name] for ours, name in self.names.files.items()}
        except (ValueError, ConfigError) as error:
            self.names, self.shapes = Names(files={}, depth=None, strangers=()), {}
            self._wrong(str(error))

    def layout(self) -> Layout | None:
        """Return the layout, None if `problems` says why not."""
        if self.problems or not self._is_medusa():
            return None
        shared = self.config.get("original_lm_head") is True
        heads = self._heads(shared)
        layers = tuple(self._layers(head) for head in range(heads))
        self._check_whole(heads, shared)
        if self.problems:
            return None
        self._check_widths()
        rows, scale = self._rows(), self.config.get("logit_scale", 1.0)
        if not isinstance(scale, (int, float)) or isinstance(scale, bool) or not 0 < scale < float("inf"):
            self._wrong(f"its config.json has logit_scale {scale!r}, which is no positive number")
        if self.problems:
            return None
        return Layout(
            files=self.names.files,
            layers=layers,
            shared_head=shared,
            rows=rows,
            mapped=TOKEN_MAP in self.shapes,
            logit_scale=float(scale),
            notes=self._notes(heads, layers),
        )

    def _wrong(self, message: str, next_step: str = "") -> None:
        self.problems.append(Problem(key="model", message=f"{self.draft.model!r}: {message}", next_step=next_step))

    def _is_medusa(self) -> bool:
        """Check that there are heads, in a form that can be read."""
        quantized = [name for name in self.names.strangers if self.shapes and QUANTIZED.search(name)]
        if quantized:
            self._wrong(f"its heads are quantized ({quantized[0]})", "give heads in a floating-point dtype")
            return False
        if self.names.layers or self.names.heads:
            return True
        kind = f"model_type {self.config.get('model_type')!r}, architectures {self.config.get('architectures')!r}"
        self._wrong(
            f"it has no Medusa heads, whose tensors are 0.0.linear.weight or blocks.0.layers.0.weight ({kind}), and "
            "the method is medusa",
            "name the method that this checkpoint is for, or give a checkpoint of Medusa heads",
        )
        return False

    def _heads(self, shared: bool) -> int:
        """Return the number of heads: one more than the largest index that is stored."""
        indices = {head for head, _ in self.names.layers} | (set() if shared else set(self.names.heads))
        return 1 + max(indices, default=0)

    def _layers(self, head: int) -> tuple[int, ...]:
        """Return the stored layer behind each residual layer of a head.

        Trainers of old files used one layer several times, and some files hold it once: then it is the lowest one.
        """
        stored = sorted(layer for h, layer in self.names.layers if h == head)
        depth = self.names.depth
        if depth is None:
            return tuple(range(1 + max((layer for _, layer in self.names.layers), default=-1)))
        return tuple(layer if layer in stored or not stored else stored[0] for layer in range(depth))

    def _check_whole(self, heads: int, shared: bool) -> None:
        """Check that every tensor of every head is there."""
        wanted = [WEIGHT.format(head, layer) for head in range(heads) for layer in self._layers(head)]
        said = num_layers(self.config)
        if self.names.depth is None and said is not None and self.names.layers:
            wanted += [WEIGHT.format(head, layer) for head in range(heads) for layer in range(said[1])]
        if self.config.get("medusa_fc_bias") is True:
            wanted += [name.removesuffix("weight") + "bias" for name in wanted]
        wanted += [HEAD.format(head) for head in (range(1) if shared else range(heads))]
        missing = [name for name in dict.fromkeys(wanted) if name not in self.shapes]
        if missing:
            lacks_heads = missing == [HEAD.format(head) for head in range(1, heads)]
            step = "if the first head serves all, its config.json must say original_lm_head true"
            self._wrong(f"these tensors are missing: {', '.join(missing)}", step if lacks_heads else NOT_WHOLE)

    def _check_widths(self) -> None:
        """Check the shapes of everything that reads or writes the target's states."""
        width = self.target.hidden_size
        for name, shape in self.shapes.items():
            if name == TOKEN_MAP:
                continue
            is_layer, is_bias = name.startswith("blocks."), name.endswith(".bias")
            rows = width if is_layer else (shape or (0,))[0]
            expected = (rows,) if is_bias else (rows, width)
            if shape != expected:
                ours = f"{list(expected)}" if is_layer else f"{'[vocabulary]' if is_bias else f'[vocabulary, {width}]'}"
                self._wrong(
                    f"{self.names.files[name]} is {list(shape)}, and heads for a target of width {width} have {ours}",
                    "give heads that were trained for this target",
                )
                return

    def _rows(self) -> int:
        """Check heads against each other, the map and the target's vocabulary; return how many ids a head knows."""
        heads = {self.shapes[name][0] for name in self.shapes if name.startswith("lm_heads.")}
        if len(heads) > 1:
            self._wrong(f"its heads have different numbers of rows: {sorted(heads)}")
        rows, vocabulary = max(heads), self.target.vocab_size
        cut, whole = self.config.get("truncated_vocab_size"), self.config.get("vocab_size")
        is_cut = isinstance(cut, int) and isinstance(whole, int) and cut < whole
        mapped = self.shapes.get(TOKEN_MAP)
        if mapped is not None:
            if len(mapped) != 1 or not 0 < mapped[0] <= rows:
                self._wrong(f"its token_map is {list(mapped)}, and its heads have {rows} rows")
            elif is_cut and cut != mapped[0]:
                self._wrong(f"its token_map has {mapped[0]} ids, and its config.json says truncated_vocab_size {cut}")
            return mapped[0] if mapped else 0
        if is_cut and rows < vocabulary:
            message = f"its heads have {rows} rows, the target {vocabulary} ids, and token_map between them is missing"
            self._wrong(message, NOT_WHOLE)
        elif abs(rows - vocabulary) > PADDING:
            message = f"its heads know {rows} ids and the target {vocabulary}, which is more than padding explains"
            self._wrong(message, "give heads that were trained for this target")
        return rows

    def _notes(self, heads: int, layers: tuple[tuple[int, ...], ...]) -> tuple[str, ...]:
        notes = []
        for what, said, found in (
            ("heads", num_heads(self.config), heads),
            ("layers a head", num_layers(self.config), len(layers[0])),
        ):
            if said is not None and said[1] != found:
                notes.append(f"config.json says {said[0]} {said[1]}, and the tensors have {found} {what}")
        if self.names.strangers and self.names.files and not self._is_whole_model():
            some = ", ".join(self.names.strangers[:4])
            notes.append(f"these tensors belong to no head: {some}{', ...' if len(self.names.strangers) > 4 else ''}")
        return tuple(notes)

    def _is_whole_model(self) -> bool:
        """Say whether config.json is that of a language model, whose own tensors stand beside the heads."""
        return "num_attention_heads" in self.config and not names_medusa(self.config) and bool(own_keys(self.config))
