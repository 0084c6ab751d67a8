"""What a Kangaroo checkpoint holds: an attention layer without an MLP, and a norm behind it; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from specdec_core.config.rope import rope_problem
from specdec_nn.checkpoints.decoder import DecoderReader
from specdec_nn.checkpoints.names import Spelling
from specdec_nn.checkpoints.reader import INCOMPLETE, OTHER_TARGET

NORM: Final = "norm.weight"
LAYER: Final = ("input_layernorm.weight", *(f"self_attn.{name}_proj.weight" for name in "qkvo"))
UNUSED: Final = "rotary_emb."  # part of the names of buffers, which follow from config.json
NEXT: Final = "give an adapter as the authors' training writes it, or the method that this checkpoint is for"


def required(layers: int) -> list[str]:
    """Return the names of the tensors that an adapter of so many layers cannot be without."""
    return [f"layers.{number}.{name}" for number in range(layers) for name in LAYER] + [NORM]


@dataclass(frozen=True)
class Layout:
    """An adapter that can be built.

    config  its sizes and rotary embedding, by Llama's keys
    layers  how many attention layers it has; those that are published have one
    """

    config: Mapping[str, Any]
    layers: int


class KangarooReader(DecoderReader[Layout]):
    """One look at an adapter."""

    spelling: ClassVar[Spelling] = Spelling(ignored=(UNUSED,), prefixes=("module.", "model."))
    what: ClassVar[str] = "adapters"

    def look(self) -> Layout | None:
        """Check tensors and config.json against each other and the target."""
        if self.problems or not self._is_adapter():
            return None
        layers = self.num_layers
        whole = self.require(required(layers), INCOMPLETE)
        if not self.has_heads() or not whole or not self._fits():
            return None
        width = self.target.hidden_size
        self.expect({NORM: (width,)}, f"adapters for a target of width {width} have", OTHER_TARGET)
        for number in range(layers):
            self.expect_layer(number, width, width)
        return Layout({**self.config, "hidden_size": width}, layers)

    def _is_adapter(self) -> bool:
        """Check that there are layers, of the adapter's kind and with no tensors besides."""
        if not any(name.startswith("layers.") for name in self.files):
            kind = f"model_type {self.config.get('model_type')!r}, architectures {self.config.get('architectures')!r}"
            self.wrong(
                f"it has no adapter, whose tensors are layers.0.self_attn.q_proj.weight, ... ({kind}), and the method "
                "is kangaroo",
                NEXT,
            )
            return False
        self.refuse_others(required(self.num_layers), NEXT)
        return not self.problems

    def _fits(self) -> bool:
        """Check sizes of config.json against the target, and its rotary embedding."""
        width, own = self.target.hidden_size, self.config.get("hidden_size")
        if own not in (None, width):
            self.wrong(f"it was made for a target of width {own}, and this one has {width}", OTHER_TARGET)
        rope = rope_problem(self.config)
        if rope is not None:
            self.wrong(rope)
        return not self.problems
