"""Heads made of decoder layers that share the target's vocabulary: shapes of layers, tables and maps. No torch.

Names are those of transformers' Llama (docs/checkpoints.md); a method that reads such heads subclasses DecoderReader.
"""

from __future__ import annotations

from typing import Final, TypeVar

from specdec_nn.checkpoints.reader import INCOMPLETE, CheckpointReader, Shape

EMBEDDING: Final = "embed_tokens.weight"
HEAD: Final = "lm_head.weight"
BECAUSE: Final = "its config.json makes it"
# What a layer cannot be without, by the names inside it; norms in front of attention are the method's to ask for.
LAYER: Final = (
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
    "post_attention_layernorm.weight",
)

Layout = TypeVar("Layout")


class DecoderReader(CheckpointReader[Layout]):
    """A CheckpointReader with the checks that heads of decoder layers have in common."""

    def has_heads(self) -> bool:
        """Add a problem if config.json does not have the number of attention heads, and return whether it has."""
        heads = self.config.get("num_attention_heads")
        if isinstance(heads, int) and heads > 0:
            return True
        self.wrong(f"its config.json has no num_attention_heads, but {heads!r}")
        return False

    def is_for_width(self) -> bool:
        """Add a problem if config.json names a target of another width, and return whether it does not."""
        named, width = self.config.get("target_hidden_size"), self.target.hidden_size
        if named is None or named == width:
            return True
        self.wrong(f"it was made for a target of width {named}, and this one has {width}")
        return False

    def expect_layer(self, number: int, width: int, columns: int) -> None:
        """Add problems for tensors of a layer of another shape than config.json and the head's width make them.

        `columns` are those of what queries, keys and values are made of.
        """
        heads = int(self.config["num_attention_heads"])
        kv_heads = int(self.config.get("num_key_value_heads") or heads)
        dims, prefix = int(self.config.get("head_dim") or width // heads), f"layers.{number}."
        rows = {"q": heads * dims, "k": kv_heads * dims, "v": kv_heads * dims}
        shapes: dict[str, Shape] = {f"self_attn.{name}_proj.weight": (size, columns) for name, size in rows.items()}
        shapes |= {f"self_attn.{name}_proj.bias": (size,) for name, size in rows.items()}
        shapes |= {"self_attn.o_proj.weight": (width, heads * dims), "self_attn.o_proj.bias": (width,)}
        shapes |= {f"self_attn.{name}_norm.weight": (dims,) for name in "qk"}
        shapes |= {f"{name}_layernorm.weight": (width,) for name in ("input", "post_attention")}
        inner = next(iter(self.shapes.get(f"{prefix}mlp.gate_proj.weight", ())), None)
        shapes |= {f"mlp.{name}_proj.weight": (inner, width) for name in ("gate", "up")}
        shapes |= {"mlp.down_proj.weight": (width, inner), "self_attn.sinks": (heads,)}
        self.expect({prefix + name: shape for name, shape in shapes.items()}, BECAUSE)

    def tables(self, width: int, named: int | None) -> int:
        """Check embedding, LM head and maps of a head of that width, and return how many ids it knows.

        `named` is the size of its vocabulary in config.json, None if that has none. What a head lacks is borrowed.
        """
        self._embedding(width)
        self.expect_maps()
        target, head = self.target.vocab_size, self.shapes.get(HEAD)
        if head is None:
            if width != self.target.hidden_size or (named is not None and named < target):
                self.wrong(
                    f"it has no {HEAD}; the target's has {target} rows of width {self.target.hidden_size} and "
                    f"cannot stand in for one of {named or target} rows of width {width}",
                    INCOMPLETE,
                )
            return target
        if len(head) != 2 or head[1] != width:
            self.wrong(f"{HEAD} is {list(head)}, and its width is {width}")
        if named is not None and named != head[0]:
            self.wrong(f"{HEAD} has {head[0]} rows, and config.json has draft_vocab_size {named}")
        if head[0] < target and "d2t" not in self:
            self.wrong(
                f"its head has {head[0]} ids, the target {target}, and the map d2t between them is missing", INCOMPLETE
            )
        if "d2t" in self and self.shapes["d2t"] != (head[0],):
            self.wrong(f"the map d2t is {list(self.shapes['d2t'])}, and the head has {head[0]} rows")
        if head[0] > target:
            self.expect_table(HEAD, head[0], target)
        return head[0]

    def expect_sharing(self, share: bool | None) -> None:
        """Add a problem if the wish to share the target's embedding cannot be met; see `sharing_problem`."""
        problem = sharing_problem(self.shapes.get(EMBEDDING), self.target.hidden_size, share)
        if problem is not None:
            self.wrong(problem, "leave it out", "share_embeddings")

    def _embedding(self, width: int) -> None:
        own, target = self.shapes.get(EMBEDDING), self.target.hidden_size
        if own is None and width != target:
            self.wrong(f"its width {width} is not the target's {target}, and it brings no {EMBEDDING}")
        elif own is not None and (len(own) != 2 or own[1] != width):
            self.wrong(f"{EMBEDDING} is {list(own)}, and its width is {width}")
        elif own is not None:
            self.expect_table(EMBEDDING, own[0], self.target.vocab_size)


def sharing_problem(own: tuple[int, ...] | None, width: int, share: bool | None) -> str | None:
    """Return why the option `share_embeddings` cannot be met, None if it can or is left out.

    `own` is the shape of the head's embedding, None without one; `width` is that of the target's.
    """
    if own is None and share is False:
        return f"share_embeddings is false, and the checkpoint brings no {EMBEDDING}"
    if share and own is not None and own[-1] != width:
        return f"share_embeddings is true, and the widths differ: {own[-1]} and {width}"
    return None
