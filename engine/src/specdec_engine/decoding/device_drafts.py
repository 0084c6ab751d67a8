"""The drafts of a step that are on a device: what the target's rows take of them there; it reads nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from torch import Tensor

from specdec_core.draft import Draft
from specdec_engine.decoding.trees import AncestorBits
from specdec_nn.ops.ancestor_bits.reference import depths_there


@dataclass(frozen=True, slots=True)
class DeviceDrafts:
    """The D drafts of the n decode rows of a step; bits and depths only of trees whose form the host does not know.

    ids      [D] of the drafts
    parents  [D] as in `Draft.parents`
    bits     [D + n, words] int64 ancestor bits, for each row of its newest id and its drafts
    depths   [D + n] int64 of these rows
    """

    ids: Tensor
    parents: Tensor | None = None
    bits: Tensor | None = None
    depths: Tensor | None = None

    @classmethod
    def of(cls, draft: Draft, ancestor_bits: AncestorBits) -> DeviceDrafts | None:
        """Return those of a draft, None if it is the host's; `ancestor_bits` is the kernel of that op."""
        if not draft.on_device:
            return None
        tokens, parents = (
            cast(Tensor, draft.tokens),
            cast("Tensor | None", draft.parents),
        )  # while on a device
        if not draft.is_grown or parents is None:
            return cls(tokens)
        bits = ancestor_bits(parents, draft.lengths or ())
        return cls(tokens, parents, bits, depths_there(bits))
