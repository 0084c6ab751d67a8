"""The keys of `eagle` and `eagle3` in a speculative configuration; knows no checkpoint."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from specdec_core.config.speculative import MethodOptions
from specdec_core.token_tree import Path, parse_tree


class EagleOptions(MethodOptions):
    """How an EAGLE head drafts; vLLM's keys, of today and of before, and those of the papers' dynamic trees."""

    speculative_token_tree: tuple[Path, ...] | None = Field(
        default=None,
        description="A static tree, as a text or list of paths such as [(0,), (0, 0), (1,)]: each names a node by the "
        "ranks of its tokens among their siblings. Left out: chains.",
    )
    tree_top_k: int | None = Field(
        default=None,
        ge=1,
        strict=True,
        description="Dynamic trees as in EAGLE-2, with this many tokens a node and a level; of those the "
        "num_speculative_tokens likeliest are verified. Left out: no dynamic trees.",
    )
    tree_depth: int = Field(
        default=8, ge=1, strict=True, description="The deepest level of a dynamic tree, the first one being 1."
    )
    parallel_drafting: bool | None = Field(
        default=None,
        description="Draft all tokens in one pass of the head. Left out: if the checkpoint has the tensor mask_hidden.",
    )
    eagle_aux_hidden_state_layer_ids: tuple[int, ...] | None = Field(
        default=None,
        description="Which of the target's states an EAGLE-3 head reads, k being the state after k layers. Left out: "
        "what config.json has, or 2, L // 2 and L - 3 for L layers.",
    )
    aux_layer_numbering: Literal["auto", "input", "output"] = Field(
        default="auto",
        description="What a list of layers in config.json counts: the layer that a state enters, or the one that it "
        "leaves. auto: output inside eagle_config (SpecForge, SGLang), else input (vLLM, speculators); the other one "
        "for a list that fits the target's layers under that one alone.",
    )
    share_embeddings: bool | None = Field(
        default=None,
        description="Use the target's embedding instead of the head's own. Left out: the head's own if it has one that "
        "differs, with a warning.",
    )
    disable_padded_drafter_batch: bool = Field(
        default=False, description="vLLM's key; no effect here, since batches of the drafter are never padded."
    )
    disable_eagle_block_drop: bool = Field(
        default=False, description="vLLM's key; no effect here, since the drafter shares no prefix cache."
    )

    @field_validator("speculative_token_tree", mode="before")
    @classmethod
    def _read_tree(cls, value: Any) -> Any:
        """Read and check the paths, sorted breadth first."""
        return None if value is None else parse_tree(value)

    @model_validator(mode="after")
    def _one_shape(self) -> EagleOptions:
        """Refuse two shapes at once."""
        shapes = {
            "speculative_token_tree": self.speculative_token_tree is not None,
            "tree_top_k": self.tree_top_k is not None,
            "parallel_drafting": bool(self.parallel_drafting),
        }
        given = [key for key, is_given in shapes.items() if is_given]
        if len(given) > 1:
            message = f"{' and '.join(given)} exclude each other; leave one out"
            raise ValueError(message)
        return self
