"""The keys of `medusa` in a speculative configuration; knows no checkpoint."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from specdec_core.config.speculative import MethodOptions
from specdec_core.token_tree import Path
from specdec_nn.drafters.published_trees import read_tree


class MedusaOptions(MethodOptions):
    """How Medusa heads draft."""

    speculative_token_tree: tuple[Path, ...] | None = Field(
        default=None,
        description="A static tree: the name of one of the method's own, such as mc_sim_7b_63, or a text or list of "
        "paths such as [(0,), (0, 0), (1,)], each naming a node by the ranks of its tokens under their heads. Left "
        "out: chains.",
    )

    @field_validator("speculative_token_tree", mode="before")
    @classmethod
    def _read_tree(cls, value: Any) -> Any:
        """Look a name up, or read and check the paths; both come sorted breadth first."""
        return read_tree(value)
