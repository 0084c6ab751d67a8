"""The keys of `hydra` in a speculative configuration; knows no checkpoint."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from specdec_core.config.speculative import MethodOptions
from specdec_core.token_tree import Path
from specdec_nn.drafters.published_trees import read_tree


class HydraOptions(MethodOptions):
    """How Hydra heads draft."""

    speculative_token_tree: tuple[Path, ...] | None = Field(
        default=None,
        description="A static tree: the name of a published one, such as mc_sim_7b_63, or a text or list of paths "
        "such as [(0,), (0, 0), (1,)], each naming a node by the ranks of its tokens among their siblings. Left out: "
        "chains.",
    )
    share_embeddings: bool | None = Field(
        default=None,
        description="Use the target's embedding instead of the copy in the checkpoint. Left out: the copy if there is "
        "one that differs, with a warning.",
    )

    @field_validator("speculative_token_tree", mode="before")
    @classmethod
    def _read_tree(cls, value: Any) -> Any:
        """Look a name up, or read and check the paths; both come sorted breadth first."""
        return read_tree(value)
