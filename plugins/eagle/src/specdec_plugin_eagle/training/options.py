"""What can be chosen when an EAGLE-3 head is trained; no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specdec_core.config.speculative import MethodOptions


class Eagle3TrainingOptions(MethodOptions):
    """Sizes of the head, and how its drafts are unrolled."""

    steps: int = Field(3, ge=1, le=8, description="Drafts that are unrolled in training (training-time test).")
    single_share: float = Field(
        0.25, ge=0.0, le=1.0, description="The part of a run, from its beginning, in which only one draft is unrolled."
    )
    draft_vocab: int = Field(
        4096, ge=2, description="Ids that the head can draft: the most frequent ones of the texts to train on."
    )
    intermediate: int | None = Field(
        None, ge=1, description="Neurons of the MLP, the most used ones of the target's. Left out: as many as it has."
    )
    depth_decay: float = Field(0.8, gt=0.0, le=1.0, description="How much a draft counts of what the one before does.")
    prompt_weight: float = Field(
        1.0, ge=0.0, le=1.0, description="How much ids of prompts count; those that the target wrote count 1."
    )
    head_rate: float = Field(0.3, ge=0.0, description="Learning rate of the output head, in parts of the others'.")
    start: str = Field(
        "target",
        min_length=1,
        description="What it begins with: target, the target's last layer and head; random; or the folder of a head "
        "that was trained before, on other texts as well.",
    )
    dtype: Literal["bfloat16", "float32"] = Field("bfloat16", description="Dtype of the weights that are written.")
