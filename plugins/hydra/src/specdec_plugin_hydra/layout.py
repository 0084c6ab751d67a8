"""What a Hydra checkpoint holds: heads, blocks, sizes and the prefix layer, from names and config.json; no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from specdec_core.config.rope import rope_problem
from specdec_core.sources import DraftSource, TargetInfo, language_config
from specdec_nn.checkpoints.decoder import EMBEDDING, LAYER, DecoderReader
from specdec_nn.checkpoints.reader import INCOMPLETE, OTHER_TARGET, Names, Shape, listed
from specdec_plugin_hydra import names
from specdec_plugin_hydra.names import BLOCK, HEAD, NORM
from specdec_plugin_hydra.options import HydraOptions

NUM_HEADS: Final = "hydra_num_heads"
NUM_LAYERS: Final = "hydra_num_layers"
ARCH: Final = "hydra_head_arch"
OFFSET: Final = "hidden_state_offset"
KEYS: Final = (NUM_HEADS, NUM_LAYERS, ARCH)  # that only such files have
MLP: Final = "mlp"
PREFIX_MLP: Final = "prefix-mlp"
_NUMBERS: Final = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.linear\.weight")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A checkpoint that can be built.

    blocks    (number of heads) tuples of the stored block that stands for each block of the head
    grounded  heads read the ids drafted before their place
    prefix    heads read what a decoder layer makes of all states of the target (Hydra++)
    config    the sizes of that layer, which are the target's
    rows      ids that a head knows; beyond the target's are rows of padding, which are never drafted
    aux       the residual-stream index of the target's state that is read; () = the final state
    notes     where config.json and tensors disagree and the tensors win, in words
    """

    blocks: tuple[tuple[int, ...], ...]
    grounded: bool
    prefix: bool
    config: Mapping[str, Any]
    rows: int
    aux: tuple[int, ...]
    notes: tuple[str, ...]

    @property
    def heads(self) -> int:
        """The number of heads."""
        return len(self.blocks)


class HydraReader(DecoderReader[Layout]):
    """One look at Hydra heads of either architecture."""

    def __init__(self, draft: DraftSource, options: HydraOptions, target: TargetInfo) -> None:
        """Read names and shapes; `config` becomes that of the prefix layer, and `said` is config.json."""
        super().__init__(draft, target)
        self.options, self.said = options, self.config
        self.config = language_config(target.hf_config)

    @classmethod
    def canonical(cls, found: Iterable[str]) -> Names:
        """Return canonical names."""
        return names.canonical(found)

    def look(self) -> Layout | None:
        """Check heads and prefix layer against config.json and the target."""
        self.stored = {(int(m[1]), int(m[2])) for m in map(_NUMBERS.fullmatch, self.files) if m}
        self.is_prefix = self.said.get(ARCH) == PREFIX_MLP or any(name.startswith("layers.") for name in self.files)
        if self.problems or not self._is_hydra():
            return None
        is_grounded = any(".res_connection." in name for name in self.files)
        count = 1 + max(head for head, _ in self.stored)
        blocks = tuple(self._blocks(head, is_grounded) for head in range(count))
        aux = self._aux()
        if not self._is_whole(blocks, is_grounded) or not self._has_target_width(is_grounded):
            return None
        if self.is_prefix:
            self._check_prefix()
        self.expect_sharing(self.options.share_embeddings)
        return Layout(
            blocks=blocks,
            grounded=is_grounded,
            prefix=self.is_prefix,
            config=self.config,
            rows=self._rows(),
            aux=aux,
            notes=tuple(self._notes(blocks, is_grounded)),
        )

    def _is_hydra(self) -> bool:
        """Check that there are heads, of an architecture that is built here and with no tensors besides."""
        arch = self.said.get(ARCH)
        others = [name for name in self.others if name.startswith(names.OWN) and not names.is_unused(name)]
        if arch is not None and arch not in (MLP, PREFIX_MLP):
            self.wrong(f"its config.json has {ARCH} {arch!r}, and heads of {MLP} and {PREFIX_MLP} are built here")
        elif not self.stored:
            kind = f"model_type {self.said.get('model_type')!r}, architectures {self.said.get('architectures')!r}"
            self.wrong(
                f"it has no Hydra heads, whose tensors are hydra_mlp.0.0.linear.weight, ... ({kind}), and the method "
                "is hydra",
                "name the method that this checkpoint is for, or give a checkpoint of Hydra heads",
            )
        elif others:
            self.wrong(f"nothing here knows what these tensors of its heads are for: {listed(others)}")
        return not self.problems

    def _blocks(self, head: int, is_grounded: bool) -> tuple[int, ...]:
        """Return the stored block behind each block of a head.

        All blocks but the first of grounded heads are one module, and some files hold it once: then it is the lowest.
        """
        first = int(is_grounded)
        stored = sorted(block for h, block in self.stored if h == head)
        shared = [block for block in stored if block >= first]
        said = self._said(NUM_LAYERS)
        count = max(1 + max((block for _, block in self.stored), default=0), said or 0)
        return tuple(block if block in stored or block < first or not shared else shared[0] for block in range(count))

    def _said(self, key: str) -> int | None:
        """Return a number of config.json, None if there is none of at least 1."""
        value = self.said.get(key)
        return value if type(value) is int and value >= 1 else None

    def _is_whole(self, blocks: tuple[tuple[int, ...], ...], is_grounded: bool) -> bool:
        """Check that every tensor of every head, and of the prefix layer, is there."""
        wanted = []
        for head, stored in enumerate(blocks):
            for block in dict.fromkeys(stored):
                kinds = ("linear", "res_connection") if is_grounded and block == 0 else ("linear",)
                wanted += [BLOCK.format(head, block, kind, what) for kind in kinds for what in ("weight", "bias")]
            wanted += [HEAD.format(head, what) for what in ("weight", "bias")]
        if self.is_prefix:
            wanted += [f"layers.0.{name}" for name in ("input_layernorm.weight", *LAYER)] + [NORM]
        return self.require(wanted, INCOMPLETE)

    def _has_target_width(self, is_grounded: bool) -> bool:
        """Check the shapes of everything that reads or writes states and embeddings."""
        width = self.target.hidden_size
        expected: dict[str, Shape] = {NORM: (width,), EMBEDDING: (None, width)}
        for name in self.files:
            part, *numbers = name.split(".")
            if part == "hydra_mlp":
                reads = width * (int(numbers[0]) + 2) if is_grounded and numbers[1] == "0" else width
                expected[name] = (width, reads)[: 1 + name.endswith("weight")]
            elif part == "hydra_lm_head":
                expected[name] = (None, width)[: 1 + name.endswith("weight")]
        return self.expect(expected, f"heads for a target of width {width} have", OTHER_TARGET)

    def _check_prefix(self) -> None:
        """Check the prefix layer, which has the target's sizes and rotary embedding."""
        heads, rope = self.config.get("num_attention_heads"), rope_problem(self.config)
        if not isinstance(heads, int) or heads < 1:
            self.wrong(
                "its prefix layer is one of Llama with the target's sizes, and the target's config.json has no "
                "num_attention_heads",
                OTHER_TARGET,
            )
            return
        if rope is not None:
            self.wrong(f"its prefix layer has the target's positions: {rope}", OTHER_TARGET)
        self.expect_layer(0, self.target.hidden_size, self.target.hidden_size)

    def _rows(self) -> int:
        """Check heads and embedding against the target's vocabulary; return how many ids a head knows."""
        sizes = {self.shapes[name][0] for name in self.shapes if name.startswith("hydra_lm_head.")}
        if len(sizes) > 1:
            self.wrong(f"its heads have different numbers of rows: {sorted(sizes)}")
        rows = max(sizes)
        self.expect_table(self.files[HEAD.format(0, "weight")], rows, self.target.vocab_size)
        if EMBEDDING in self:
            self.expect_table(self.files[EMBEDDING], self.shapes[EMBEDDING][0], self.target.vocab_size)
        return rows

    def _aux(self) -> tuple[int, ...]:
        """Return which state of the target is read: 0 is the final one, j the residual stream j layers before."""
        offset, layers = self.said.get(OFFSET, 0), self.target.num_layers
        if type(offset) is not int or not 0 <= offset <= layers:
            self.wrong(
                f"its config.json has {OFFSET} {offset!r}, expected 0 .. {layers} for a target of {layers} layers"
            )
            return ()
        return (layers - offset,) if offset else ()

    def _notes(self, blocks: tuple[tuple[int, ...], ...], is_grounded: bool) -> Iterator[str]:
        for key, found, what in ((NUM_HEADS, len(blocks), "heads"), (NUM_LAYERS, len(blocks[0]), "blocks a head")):
            if self._said(key) not in (None, found):
                yield f"config.json has {key} {self.said[key]}, and the tensors have {found} {what}"
        grounded = self.said.get("grounded_heads")
        if grounded is not None and bool(grounded) != is_grounded:
            does = "do" if is_grounded else "do not"
            yield f"config.json has grounded_heads {grounded}, and by their tensors the heads {does} read drafts"
        if self.is_prefix and self.said.get(ARCH) == MLP:
            yield f"config.json has {ARCH} {MLP!r}, and there is a prefix layer"
        foreign = [name for name in self.others if not names.is_unused(name)]
        if foreign:
            yield f"these tensors belong to no head: {listed(foreign, 4)}"
