"""The accepted spellings of tensors in EAGLE files, and those used here; it knows no shapes."""

from __future__ import annotations

from typing import Final

from specdec_nn.checkpoints.names import Spelling

SPELLING: Final = Spelling(
    ignored=("rotary_emb.", "verifier_norm.", "verifier_lm_head."),
    tables=("d2t", "t2d"),
    prefixes=("model.", "module."),
    replaced=(
        ("midlayer.", "layers.0."),
        ("eagle_layers.", "layers."),
        ("eagle_linear.", "fc."),
        # Of speculators' type eagle.
        ("fusion_fc.", "fc."),
        ("transformer.", "layers.0."),
        (".feed_forward.", ".mlp."),
    ),
)
