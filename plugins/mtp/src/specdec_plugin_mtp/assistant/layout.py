"""What a Gemma 4 assistant's checkpoint holds, and which layers of the target it attends to; no torch, no weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from specdec_core.config import checkpoint
from specdec_core.sources import DraftSource, Problem, TargetInfo, language_config
from specdec_nn.checkpoints.names import Spelling
from specdec_nn.checkpoints.reader import INCOMPLETE, OTHER_TARGET, CheckpointReader, Shape

EMBEDDING: Final = "embed_tokens.weight"  # the head; the embedding is the target's
HEAD: Final = "lm_head.weight"
BEFORE, BEHIND, NORM = "pre_projection.weight", "post_projection.weight", "norm.weight"
NORMS: Final = tuple(
    f"{n}_layernorm.weight" for n in ("input", "post_attention", "pre_feedforward", "post_feedforward")
)
ATTENTION: Final = tuple(f"self_attn.{name}.weight" for name in ("q_proj", "q_norm", "o_proj"))
MLP: Final = tuple(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down"))
LAYER: Final = (*NORMS, *ATTENTION, *MLP, "layer_scalar")
CENTROIDS: Final = "masked_embedding."  # a faster way to the same most likely ids, which nothing here reads
KINDS: Final = ("sliding_attention", "full_attention")
GENERATION_CONFIG: Final = "generation_config.json"
PATTERN: Final = 6  # without layer_types every sixth layer is full


@dataclass(frozen=True)
class Layout:
    """An assistant that can be built.

    text        the keys of its decoder
    kinds       the type of each of its layers
    sources     the target's layer that each of them attends to
    window      keys that sliding layers see
    suppressed  ids that are never drafted
    """

    text: Mapping[str, Any]
    kinds: tuple[str, ...]
    sources: tuple[int, ...]
    window: int
    suppressed: tuple[int, ...]


def layer_types(text: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the type of each layer of a Gemma 4 decoder; the last one is full, whatever is written."""
    count = int(text.get("num_hidden_layers") or 0)
    types = list(text.get("layer_types") or [KINDS[(i + 1) % PATTERN == 0] for i in range(count)])
    return (*types[:-1], KINDS[1]) if types else ()


def sources(target: TargetInfo) -> dict[str, int]:
    """Return the target's last layer of each type that has keys of its own."""
    text = language_config(target.hf_config)
    own = layer_types(text)[: target.num_layers - int(text.get("num_kv_shared_layers") or 0)]
    return {kind: number for number, kind in enumerate(own)}


def head_dim(text: Mapping[str, Any], kind: str) -> int | None:
    """Return the width of a head in layers of a type, None where the configuration does not tell."""
    own = text.get("per_layer_config")
    if isinstance(own, Mapping):
        numbers = [number for number, other in enumerate(layer_types(text)) if other == kind]
        said: Mapping[str, Any] = next(
            (own[key] for n in numbers for key in (n, str(n)) if isinstance(own.get(key), Mapping)), {}
        )
        return said.get("head_dim") or text.get("head_dim")
    return text.get("global_head_dim") if kind == KINDS[1] else text.get("head_dim")


class AssistantReader(CheckpointReader[Layout]):
    """One look at an assistant."""

    spelling: ClassVar[Spelling] = Spelling(ignored=("rotary_emb.",), prefixes=("model.",))
    original: ClassVar[bool] = True
    what: ClassVar[str] = "assistants"
    floats: ClassVar[tuple[str, ...]] = (".weight", "layer_scalar")

    def __init__(self, source: DraftSource, target: TargetInfo) -> None:
        """Read names and shapes; `text` are the keys of its decoder."""
        super().__init__(source, target)
        self.text = language_config(self.config)
        self.kinds = layer_types(self.text)

    def all_problems(self) -> list[Problem]:
        """Return everything that is wrong with drafting here; a host may have assistants of its own."""
        self.layout()
        return [replace(problem, drafter_only=True) for problem in self.problems]

    def look(self) -> Layout | None:
        """Check config.json and tensors against each other and the target."""
        if self.problems or not self._is_built() or not self._is_for_target():
            return None
        wanted = [f"layers.{i}.{name}" for i in range(len(self.kinds)) for name in LAYER]
        known = [*wanted, BEFORE, BEHIND, NORM, EMBEDDING]
        whole = self.require(known, INCOMPLETE)
        self.refuse_others([*known, HEAD, *(name for name in self.files if name.startswith(CENTROIDS))], OTHER_TARGET)
        if not whole or not self._shapes():
            return None
        for number, kind in enumerate(self.kinds):
            self._expect_head(number, kind)
        found = sources(self.target)
        return Layout(
            text=self.text,
            kinds=self.kinds,
            sources=tuple(found[kind] for kind in self.kinds),
            window=int(self.text.get("sliding_window") or 512),
            suppressed=self._suppressed(),
        )

    def _is_built(self) -> bool:
        """Check what of a Gemma 4 decoder an assistant has."""
        layers, shared = len(self.kinds), self.text.get("num_kv_shared_layers")
        heads = self.text.get("num_attention_heads")
        if not layers or type(heads) is not int or heads < 1:
            self.wrong("its text_config has no num_hidden_layers or no num_attention_heads", INCOMPLETE)
        if shared not in (None, 0, layers):
            self.wrong(f"{shared} of its {layers} layers attend to the target's keys, and here all of them have to")
        for key in ("hidden_size_per_layer_input", "enable_moe_block", "use_double_wide_mlp", "attention_bias"):
            if self.text.get(key):
                self.wrong(f"its text_config has {key} {self.text[key]!r}, and assistants are built without it")
        return not self.problems

    def _is_for_target(self) -> bool:
        """Check the target's width and types of layers."""
        width, found = self.config.get("backbone_hidden_size"), sources(self.target)
        if width != self.target.hidden_size:
            self.wrong(f"it was made for a target of width {width}, and this one has {self.target.hidden_size}")
        lost = sorted({kind for kind in self.kinds if kind not in found})
        if lost:
            said = ", ".join(sorted(found)) or "none"
            self.wrong(
                f"its layers of type {', '.join(lost)} attend to keys of the target's layers of that type, and the "
                f"target's layers with keys of their own are of type {said}",
                OTHER_TARGET,
            )
        return not self.problems

    def _shapes(self) -> bool:
        """Check every tensor's shape."""
        width, own, heads = self.target.hidden_size, self.shapes[NORM][0], int(self.text["num_attention_heads"])
        shapes: dict[str, Shape] = {BEFORE: (own, 2 * width), BEHIND: (width, own), NORM: (own,)}
        shapes |= {EMBEDDING: (None, own), HEAD: (None, own)}
        for number in range(len(self.kinds)):
            at = f"layers.{number}."
            dims = self.shapes[f"{at}self_attn.q_norm.weight"][-1]
            inner = self.shapes[f"{at}mlp.gate_proj.weight"][0]
            shapes |= {at + name: (own,) for name in NORMS}
            shapes |= {f"{at}self_attn.q_proj.weight": (heads * dims, own), f"{at}self_attn.q_norm.weight": (dims,)}
            shapes |= {f"{at}self_attn.o_proj.weight": (own, heads * dims), f"{at}layer_scalar": (1,)}
            shapes |= {f"{at}mlp.{name}_proj.weight": (inner, own) for name in ("gate", "up")}
            shapes[f"{at}mlp.down_proj.weight"] = (own, inner)
        right = self.expect(shapes, f"an assistant for a target of width {width} has", OTHER_TARGET)
        for name in (EMBEDDING, HEAD):
            if right and name in self:
                self.expect_table(self.files[name], self.shapes[name][0], self.target.vocab_size)
        return right

    def _expect_head(self, number: int, kind: str) -> None:
        """Check that a layer's queries are as wide as the keys that they meet."""
        dims = self.shapes[f"layers.{number}.self_attn.q_norm.weight"][0]
        theirs = head_dim(language_config(self.target.hf_config), kind)
        if theirs is not None and theirs != dims:
            self.wrong(f"queries of its layer {number} are {dims} wide, and the target's {kind} keys {theirs}")

    def _suppressed(self) -> tuple[int, ...]:
        """Return suppress_tokens of its generation_config.json."""
        place = self.source.path
        file = (place if place.is_dir() else place.parent) / GENERATION_CONFIG
        said = checkpoint.read_json_object(file).get("suppress_tokens") if file.is_file() else None
        return tuple(i for i in said or () if type(i) is int and 0 <= i < self.target.vocab_size)
