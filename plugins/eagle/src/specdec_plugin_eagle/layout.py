"""What an EAGLE checkpoint is: generation, flavour, sizes and switches, from config.json and tensor names; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from specdec_core.config.rope import rope_problem
from specdec_core.sources import DraftSource, Note, TargetInfo
from specdec_nn.checkpoints.decoder import BECAUSE, DecoderReader
from specdec_nn.checkpoints.reader import OTHER_TARGET, Shape, Shapes
from specdec_plugin_eagle.aux_layers import KEY, aux_layers
from specdec_plugin_eagle.names import SPELLING
from specdec_plugin_eagle.options import EagleOptions
from specdec_plugin_eagle.required import (
    EAGLE_1,
    EAGLE_3,
    FC_NORM,
    FINAL,
    INPUT_NORM,
    SECOND_NAMES,
    SECOND_NORMS,
    Flavour,
    contradictions,
    required,
    switch,
)

HIDDEN_NORM: Final = "layers.0.hidden_norm.weight"
MASK_KEYS: Final = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
# Blocks of these families are wired in ways that nothing here builds.
OTHER_FAMILIES: Final = ("deepseek", "cohere", "mistrallarge3", "mistral3", "gptoss", "gemma")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A checkpoint that can be built.

    method         "eagle" or "eagle3"
    flavour        the family of its block
    config         its configuration, converted from the speculators format if it came in that
    shapes         shape of each tensor by the name used here
    width          its hidden width H_d
    num_layers     its decoder layers
    vocab_size     rows of its own head, or of the target's where that is borrowed
    own_head       it brings a head
    aux            R_k indices of the target states it reads, ascending; () = the final hidden state
    mask_token     the id that stands for unknown tokens in parallel drafting, None without it
    """

    method: str
    flavour: Flavour
    config: Mapping[str, Any]
    shapes: Shapes
    width: int
    num_layers: int
    vocab_size: int
    own_head: bool
    aux: tuple[int, ...]
    mask_token: int | None

    def has(self, name: str) -> bool:
        """Return whether the checkpoint holds a tensor."""
        return name in self.shapes

    def flag(self, key: str) -> bool:
        """Return a switch of the configuration."""
        return switch(self.config, key)


class EagleReader(DecoderReader[Layout]):
    """One look at an EAGLE head, for the method that was asked for."""

    spelling = SPELLING

    def __init__(self, method: str, draft: DraftSource, options: EagleOptions, target: TargetInfo) -> None:
        """Look at names and shapes; nothing else is read."""
        super().__init__(draft, target)
        self.method, self.options = method, options

    def look(self) -> Layout | None:
        """Check the head against its config.json, the options and the target."""
        if not self._is_of_method() or self._has_second_norms():
            return None
        flavour, width = self._flavour(), self._width()
        self.has_heads()
        rope = rope_problem(self.config)
        if rope is not None:
            self.wrong(rope, "give a head whose positions are of a known type")
        if flavour is None or width is None or self.problems:
            return None
        num_layers = self.num_layers
        self._check_layers(num_layers, width, flavour)
        named = self.config.get("draft_vocab_size") or self.config.get("truncated_vocab_size")
        vocab_size = self.tables(width, named)
        self.expect_sharing(self.options.share_embeddings)
        return Layout(
            method=self.method,
            flavour=flavour,
            config=self.config,
            shapes=self.shapes,
            width=width,
            num_layers=num_layers,
            vocab_size=vocab_size,
            own_head="lm_head.weight" in self.files,
            aux=self._aux(),
            mask_token=self._mask_token(),
        )

    def _is_of_method(self) -> bool:
        """Check that the tensors are those of the method that was asked for."""
        generation = generation_of(self.shapes)
        if generation == self.method:
            return True
        if generation is None:
            some = ", ".join(sorted(self.files)[:6]) or "none"
            self.wrong(
                f"its tensors are not those of an EAGLE head, which has fc.weight and layers.0.* (it has {some}, ...)",
                "give the checkpoint of a head, or the method that it belongs to",
            )
        else:
            self.wrong(
                f"method {self.method} was asked for, and its tensors are those of {generation} "
                f"({evidence_of(generation, self.shapes, self.files)})",
                f'use "method": "{generation}"',
                "method",
            )
        return False

    def _has_second_norms(self) -> bool:
        """Refuse EAGLE-1 heads with norms around the embedding and the output: nothing defines what goes back in."""
        found = [self.files[name] for name in SECOND_NAMES if name in self.files]
        found += [f"{SECOND_NORMS} true in config.json"] if self.config.get(SECOND_NORMS) is True else []
        if self.method != EAGLE_1 or not found:
            return False
        self.wrong(
            f"it has norms around its embedding and its output ({', '.join(found)}), and it is published nowhere "
            "whether the next draft is made of the state in front of the last norm or behind it",
            "give a head without them (layernorms false), or an EAGLE-3 head",
        )
        return True

    def _flavour(self) -> Flavour | None:
        name = next(iter(self.source.architectures), None) or str(self.config.get("model_type") or "llama")
        text = name.lower().replace("_", "")
        experts = any(".experts." in tensor for tensor in self.files)
        if experts or any(family in text for family in OTHER_FAMILIES):
            self.wrong(
                f"heads of the family {name!r} are not built here"
                + (", nor are mixtures of experts" if experts else ""),
                "heads of the Llama, Qwen, Llama-4, Mistral and MiniCPM families are",
            )
            return None
        for flavour in ("llama4", "mistral", "minicpm"):
            if flavour in text:
                return flavour
        return "llama"

    def _width(self) -> int | None:
        fc, target = self.shapes.get("fc.weight"), self.target.hidden_size
        if self.method == EAGLE_1:
            if fc != (target, 2 * target):
                self.wrong(
                    f"fc.weight is {_of(fc)}, and a head for a target of width {target} has [{target}, {2 * target}]",
                    OTHER_TARGET,
                )
                return None
            return target
        if not self.is_for_width():
            return None
        if fc is None:
            width = self.shapes[HIDDEN_NORM][0]
            if width != target:
                self.wrong(f"it has no fc.weight, so its width {width} would have to be the target's {target}")
                return None
            return width
        if len(fc) != 2 or fc[1] % target:
            self.wrong(f"fc.weight is {_of(fc)}, and its columns are no multiple of the target's width {target}")
            return None
        return fc[0]

    def _states(self) -> int:
        """Return how many states of the target fc takes."""
        fc = self.shapes.get("fc.weight")
        return 0 if fc is None else fc[1] // self.target.hidden_size

    def _check_layers(self, num_layers: int, width: int, flavour: Flavour) -> None:
        """Check names and shapes of the blocks."""
        names = required(self.method, flavour, self.config, num_layers, self._states(), self.files)
        if not self.require(names):
            return
        if self.method == EAGLE_3:
            for message in contradictions(self.config, self.files):
                self.wrong(message, "correct its config.json")
        for i in range(num_layers):
            self.expect_layer(i, width, 2 * width if self.method == EAGLE_3 and i == 0 else width)
        self.expect(self._around(width), BECAUSE)
        turned = self.config.get("no_rope_layers") if flavour == "llama4" else None
        if isinstance(turned, list) and not all(turned[:num_layers]):
            self.wrong(f"its config.json has no_rope_layers {turned}, and layers without positions are not built here")

    def _around(self, width: int) -> dict[str, Shape]:
        """Return the shapes of what is around the layers, of either generation."""
        target, states = self.target.hidden_size, self._states()
        norms = {name: (width,) for name in (HIDDEN_NORM, FINAL, "input_norm1.weight", "input_norm2.weight")}
        norms |= {FC_NORM.format(i): (target,) for i in range(states)}
        return {**norms, "fc.bias": (width,), INPUT_NORM: (states * target,)}

    def _aux(self) -> tuple[int, ...]:
        """Return the target states that are read."""
        fc = self.shapes.get("fc.weight")
        if self.method == EAGLE_1 or fc is None:
            return ()
        inner = self.config.get("eagle_config")
        if isinstance(inner, Mapping) and inner.get("use_aux_hidden_state") is False:
            self.wrong("its config.json has use_aux_hidden_state false, and it has an fc.weight for such states")
            return ()
        try:
            found = aux_layers(self.config, self.options, self.target.num_layers, self._states())
        except ValueError as error:
            step = f"set {KEY}, or aux_layer_numbering to input or output for what the list of its config.json counts"
            self.wrong(str(error), step, KEY)
            return ()
        if found.note:
            self.notes.append(Note(key=KEY, value=list(found.layers), reason=found.note))
        return found.layers

    def _mask_token(self) -> int | None:
        """Return the mask id if drafting is parallel."""
        wanted = self.options.parallel_drafting
        if wanted is None:
            wanted = "mask_hidden" in self.files
        if not wanted:
            return None
        if self.method == EAGLE_1 or "mask_hidden" not in self.files:
            self.wrong(
                "parallel drafting needs a head with the tensor mask_hidden, which it has not",
                "leave parallel_drafting out",
                "parallel_drafting",
            )
            return None
        inner = self.config.get("dflash_config")
        sources = [inner] if isinstance(inner, Mapping) else []
        for source in (*sources, self.config):
            for key in MASK_KEYS:
                if isinstance(source.get(key), int):
                    return int(source[key])
        self.wrong(f"parallel drafting needs a mask id, and config.json has none of {', '.join(MASK_KEYS)}")
        return None


def generation_of(shapes: Shapes) -> str | None:
    """Return "eagle" or "eagle3" by what only that generation has, None for other checkpoints.

    `hidden_norm` at top level is DFlash's, a Markov head DSpark's: neither is EAGLE.
    """
    if "hidden_norm.weight" in shapes or any(name.startswith("markov_head.") for name in shapes):
        return None
    q_proj = shapes.get("layers.0.self_attn.q_proj.weight")
    if q_proj is None:
        return None
    if HIDDEN_NORM in shapes:
        return EAGLE_3
    fc = shapes.get("fc.weight")
    return EAGLE_1 if fc is not None and len(fc) == 2 and fc[1] == 2 * fc[0] else None


def evidence_of(generation: str, shapes: Shapes, files: Mapping[str, str]) -> str:
    """Return the tensors, by their names in the file, that make a checkpoint a head of that generation."""
    q_proj = "layers.0.self_attn.q_proj.weight"
    if generation == EAGLE_3:
        read = f"{files[q_proj]} {_of(shapes[q_proj])}, which reads an embedding and a state side by side"
        return f"{files[HIDDEN_NORM]} {_of(shapes[HIDDEN_NORM])}; {read}"
    fc = f"{files['fc.weight']} {_of(shapes['fc.weight'])}, which reads an embedding and one state"
    return f"{fc}; {files[q_proj]} {_of(shapes[q_proj])}; no hidden_norm"


def _of(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else str(list(shape))
