"""What can be chosen when an MTP layer is trained; no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specdec_core.config.speculative import MethodOptions


class MtpTrainingOptions(MethodOptions):
    """Sizes of the layer, and how its drafts are unrolled."""

    steps: int = Field(3, ge=1, le=8, description="Drafts that are unrolled in training, and proposed by the file.")
    single_share: float = Field(
        0.25, ge=0.0, le=1.0, description="The part of a run, from its beginning, in which only one draft is unrolled."
    )
    loss_vocab: int = Field(
        4096, ge=2, description="Ids among which every batch compares, the most frequent ones; all can be drafted."
    )
    other_ids: int = Field(
        1024, ge=1, description="Of the others, about how many a batch compares among, each standing for its like."
    )
    intermediate: int | None = Field(None, ge=1, description="Neurons of the MLP. Left out: as many as the target's.")
    depth_decay: float = Field(0.8, gt=0.0, le=1.0, description="How much a draft counts of what the one before does.")
    prompt_weight: float = Field(
        1.0, ge=0.0, le=1.0, description="How much ids of prompts count; those that the target wrote count 1."
    )
    dtype: Literal["bfloat16", "float32"] = Field("bfloat16", description="Dtype of the weights that are written.")
