"""The keys of `draft_model` in a speculative configuration; knows no checkpoint."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specdec_core.config.speculative import MethodOptions


class DraftModelOptions(MethodOptions):
    """How a draft model is loaded, read and run; vLLM's keys where vLLM has them."""

    parallel_drafting: bool | None = Field(
        default=None,
        description="Draft all tokens in one pass over mask tokens (PARD); needs pard_token in config.json. Left out: "
        "if config.json has spd_type pard.",
    )
    use_heterogeneous_vocab: bool = Field(
        default=False, description="The drafter has another tokenizer than the target; its own is loaded."
    )
    heterogeneous_vocab_method: Literal["token", "text"] = Field(
        default="token",
        description="With use_heterogeneous_vocab, token: map ids that both tokenizers spell the same, feed the others "
        "as unk. text: spell the text anew in the drafter's ids, and its drafts in the target's.",
    )
    draft_confidence_threshold: float | None = Field(
        default=None,
        ge=0.0,
        le=1.0,
        description="A draft ends behind the first token to which the drafter gave a lower probability. Left out: "
        "drafts are as long as allowed.",
    )
    quantization: str | None = Field(
        default=None,
        min_length=1,
        description="Quantise the drafter's plain weights while loading, by this method of transformers. Left out: as "
        "the checkpoint says.",
    )
    trust_remote_code: bool = Field(
        default=False, description="Run code that comes with the drafter's checkpoint, where it needs some."
    )
    code_revision: str | None = Field(
        default=None,
        min_length=1,
        description="Branch, tag or commit of that code, if it lies in another repository than the weights; only "
        "with trust_remote_code.",
    )
