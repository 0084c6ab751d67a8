"""What can be chosen when Medusa heads are trained; no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specdec_core.config.speculative import MethodOptions


class MedusaTrainingOptions(MethodOptions):
    """Sizes of the heads, and how much they count."""

    steps: int = Field(4, ge=1, le=16, description="Heads, each of which drafts one id.")
    draft_vocab: int = Field(
        4096, ge=2, description="Ids that the heads can draft: the most frequent ones of the texts to train on."
    )
    depth_decay: float = Field(0.8, gt=0.0, le=1.0, description="How much a head counts of what the one before does.")
    prompt_weight: float = Field(
        1.0, ge=0.0, le=1.0, description="How much ids of prompts count; those that the target wrote count 1."
    )
    head_rate: float = Field(0.3, ge=0.0, description="Learning rate of the shared output head, in parts of the rest.")
    dtype: Literal["bfloat16", "float32"] = Field("bfloat16", description="Dtype of the weights that are written.")
