"""DFlash2, LiLiCorr and Domino heads as random checkpoints, with the meaning of each configuration beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import dflash_checkpoints as checkpoints
from dflash_checkpoints import (
    BLOCK,
    CONV_KEYS,
    DOMINO_KEYS,
    GROUP,
    LATTICE_KEYS,
    SELECTOR_KEYS,
    TAPS,
    TOP_K,
    conv_tensors,
    domino_tensors,
    lattice_tensors,
    selector_tensors,
)
from dflash_layouts import TARGET, VOCAB, WIDTH, Layout, flash, speculators
from dflash_oracle import Meaning
from second_oracle import Second, SecondOracle


@dataclass(frozen=True)
class SecondLayout(Layout):
    """A layout with what its head has on top of a block."""

    second: Second = field(default_factory=Second)

    def oracle(self, model: Any = TARGET) -> SecondOracle:
        tables = (model.get_input_embeddings().weight.detach(), model.get_output_embeddings().weight.detach())
        return SecondOracle(self.plain or self.tensors, self.meaning, self.second, *tables)


def on_top(layout: Layout, second: Second, **changes: Any) -> SecondLayout:
    return SecondLayout(**{**vars(layout), "second": second, **changes})


def dflash2(
    seed: int, inner: Mapping[str, Any] | None = None, meaning: Meaning | None = None, **second: Any
) -> SecondLayout:
    """Return a DFlash2 layout; `inner` are further keys of dflash_config, `second` what they mean."""
    rows = second.pop("rows", VOCAB)
    extra = {**conv_tensors(WIDTH, seed=seed), **selector_tensors(WIDTH, rows, seed=seed), **second.pop("extra", {})}
    keys = {"architectures": ["DFlash2DraftModel"], **second.pop("keys", {})}
    layout = flash(seed, {**SELECTOR_KEYS, **(inner or {})}, meaning, extra=extra, **keys)
    return on_top(layout, Second(taps=TAPS, group=GROUP, top_k=TOP_K, **second))


def lilicorr(
    seed: int, inner: int = WIDTH, *, taps: int = 0, keys: Mapping[str, Any] | None = None, **top: Any
) -> SecondLayout:
    """Return a LiLiCorr layout of a lattice of width `inner`, with convolutions or without."""
    extra = lattice_tensors(WIDTH, inner, seed, heads=2, layers=2, factor=6) | (
        conv_tensors(WIDTH, seed=seed) if taps else {}
    )
    extra |= checkpoints.vocabulary(WIDTH, VOCAB, top.pop("rows", VOCAB), seed=seed)
    section = {**LATTICE_KEYS, **(CONV_KEYS if taps else {}), "lilicorr_hidden_size": inner, **(keys or {})}
    layout = flash(seed, section, extra=extra, architectures=["LiLiCorrDraftModel"], block_size=None, **top)
    made = {"heads": 2, "layers": 2, "block": BLOCK, "eps": 1e-6, "scale": 7.0}
    return on_top(layout, Second(taps=taps, group=GROUP, top_k=TOP_K, kind="lattice", lattice=made))


def domino(seed: int, *, shifted: bool, rows: int = VOCAB, **top: Any) -> SecondLayout:
    section = {**DOMINO_KEYS, "shift_label": shifted}
    layout = flash(seed, section, extra=domino_tensors(WIDTH, seed, rows), **top)
    return on_top(layout, Second(kind="domino", shifted=shifted))


def in_sequences(layout: SecondLayout) -> SecondLayout:
    """Return a LiLiCorr layout whose MLPs are stored as sequences of layers."""
    names = {"feature_norm.": "feature_mlp.0.", "feature_mlp.up_proj.": "feature_mlp.1."}
    names |= {"feature_mlp.down_proj.": "feature_mlp.3.", ".mlp.up_proj.": ".mlp.0.", ".mlp.down_proj.": ".mlp.2."}

    def stored(name: str) -> str:
        if not name.startswith("lilicorr."):
            return name
        return next((name.replace(old, new) for old, new in names.items() if old in name), name)

    tensors = {f"model.{stored(name)}": tensor for name, tensor in layout.tensors.items()}
    return replace(layout, tensors=tensors, plain=layout.tensors)


def second_speculators(layout: SecondLayout) -> SecondLayout:
    """Return a DFlash2 layout in the speculators format."""
    made = speculators("dflash2", layout, **SELECTOR_KEYS)
    return on_top(layout, layout.second, settings=made.settings)


ONE_WAY = Meaning(((True, None), (True, None)))
SECONDS: dict[str, SecondLayout] = {
    "DFlash2": dflash2(200),
    "DFlash2, factors": dflash2(
        201,
        {"input_embedding_scale": 1.7, "output_multiplier": 0.6, "final_logit_softcapping": 3.0},
        scale=1.7,
        multiplier=0.6,
        cap=3.0,
    ),
    "DFlash2, one way": dflash2(202, {"causal": True}, ONE_WAY),
    "DFlash2, own tables": dflash2(203, extra=checkpoints.vocabulary(WIDTH, VOCAB, VOCAB, seed=203, embedding=True)),
    "DFlash2, padded": dflash2(204, rows=VOCAB + 8, extra=checkpoints.vocabulary(WIDTH, VOCAB, VOCAB + 8, seed=204)),
    "DFlash2, speculators": second_speculators(dflash2(205)),
    "LiLiCorr": lilicorr(210),
    "LiLiCorr, narrower, convolutions": lilicorr(211, 16, taps=TAPS),
    "LiLiCorr, in sequences": in_sequences(lilicorr(212, 16)),
    "LiLiCorr, one way": on_top(lilicorr(213, keys={"causal": True}), lilicorr(213).second, meaning=ONE_WAY),
    "LiLiCorr, padded": lilicorr(214, rows=VOCAB + 8),
    "Domino": domino(220, shifted=False),
    "Domino, shifted": domino(221, shifted=True),
    "Domino, shifted, one way": on_top(
        domino(222, shifted=True, is_causal=True), domino(222, shifted=True).second, meaning=ONE_WAY
    ),
    "Domino, padded": domino(223, shifted=True, rows=VOCAB + 8),
}
