"""From a checkpoint to a drafter: reads the weights of the modules and wires them; no drafting here."""

from __future__ import annotations

from specdec.config import ResolvedConfig
from specdec.kernels import Kernels
from specdec.protocols import Proposer
from specdec.sources import DraftSource, TargetHandle
from specdec_plugin_mtp.options import MtpOptions


def make(
    config: ResolvedConfig, options: MtpOptions, draft: DraftSource, target: TargetHandle, kernels: Kernels
) -> Proposer:
    """Build the proposer."""
    message = f"the MTP modules of {draft.model!r} cannot be built by this version"
    raise NotImplementedError(message)
