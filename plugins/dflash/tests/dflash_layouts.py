"""Every layout of a head as a random checkpoint, with the meaning of its configuration written out beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import dflash_checkpoints as checkpoints
from dflash_oracle import Meaning, Oracle
from torch import Tensor

from specdec_core.config.resolve import resolve
from specdec_core.config.speculative import ResolvedConfig
from specdec_core.host.factory import make_proposer
from specdec_core.protocols import Proposer
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_testing.fakes import FakeTarget
from specdec_testing.targets import tiny_target

TARGET = tiny_target("llama", num_hidden_layers=8)
WIDTH: int = TARGET.config.hidden_size
VOCAB: int = TARGET.config.vocab_size
IDS = [4, 0, 2]  # the outputs of these layers are R_1, R_3 and R_5
AUX = (1, 3, 5)
BOTH_WAYS = ((False, None), (False, None))
ONE_WAY = ((True, None), (True, None))


@dataclass(frozen=True)
class Layout:
    """A checkpoint: method, config.json, tensors as stored; for the oracle its meaning, and tensors by plain names."""

    method: str
    settings: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    meaning: Meaning
    aux: tuple[int, ...] = AUX
    mask: Any = None
    plain: Mapping[str, Tensor] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def oracle(self, model: Any = TARGET) -> Oracle:
        tables = (model.get_input_embeddings().weight.detach(), model.get_output_embeddings().weight.detach())
        return Oracle(self.plain or self.tensors, self.meaning, *tables)

    def save(self, folder: Path, **how: Any) -> str:
        return checkpoints.save(folder, self.tensors, self.settings, self.mask, **how)

    def build(self, folder: Path, k: int | None = 4, **options: Any) -> tuple[Proposer, ResolvedConfig, FakeTarget]:
        """Write the checkpoint, and make its proposer over the tiny target."""
        target = FakeTarget(TARGET)
        registry = Registry(Catalog.discover(), strict=True)
        keys = {"method": self.method, "model": self.save(folder), "num_speculative_tokens": k}
        resolved = resolve({**keys, **self.options, **options}, target.info, registry)
        return make_proposer(resolved, target, registry), resolved, target


def section(**keys: Any) -> dict[str, Any]:
    """Return a dflash_config; None takes a key away."""
    found = {"mask_token_id": 5, "target_layer_ids": IDS, **keys}
    return {key: value for key, value in found.items() if value is not None}


def flash(seed: int, inner: Mapping[str, Any] | None = None, meaning: Meaning | None = None, **keys: Any) -> Layout:
    """Return a DFlash layout; `inner` are keys of dflash_config, the rest is config.json's or says what there is."""
    known = ("width", "states", "layers", "sinks", "bias")
    made = {key: keys.pop(key) for key in known if key in keys}
    aux = keys.pop("aux", AUX)
    width = made.pop("width", WIDTH)
    states = made.pop("states", len(aux) * WIDTH)
    extra = keys.pop("extra", {})
    tensors = {**checkpoints.trunk(width, states, seed=seed, **made), **extra}
    settings = checkpoints.config(
        width, made.get("layers", 2), **{"dflash_config": section(**dict(inner or {})), **keys}
    )
    return Layout("dflash", settings, tensors, meaning or Meaning(), aux)


def spark(
    seed: int, meaning: Meaning | None = None, rows: int = VOCAB, confidence: int | None = None, **keys: Any
) -> Layout:
    """Return a DSpark layout, whose keys stand at the top of config.json."""
    bias, extra = keys.pop("confidence_bias", False), keys.pop("extra", {})
    tensors = checkpoints.trunk(WIDTH, len(AUX) * WIDTH, seed=seed)
    tensors |= checkpoints.markov(WIDTH, VOCAB, rows, seed=seed, confidence=confidence, bias=bias)
    if rows != VOCAB:
        tensors |= checkpoints.vocabulary(WIDTH, VOCAB, rows, seed=seed)
    base = {"architectures": ["Qwen3DSparkModel"], "mask_token_id": 7, "target_layer_ids": IDS, "block_size": 7}
    settings = checkpoints.config(WIDTH, **{**base, "markov_rank": checkpoints.RANK, **keys})
    made = meaning or Meaning(from_anchor=True)
    made = replace(made, mask=(7, None), markov=True, confidence=confidence is not None)
    return Layout("dspark", settings, {**tensors, **extra}, made)


def speculators(kind: str, layout: Layout, **settings: Any) -> Layout:
    """Return the layout in the speculators format; the ids there are R_k."""
    drop = ("architectures", "dflash_config", "block_size", "target_layer_ids", "mask_token_id", "markov_rank")
    base = {key: value for key, value in layout.settings.items() if key not in drop}
    ours = {
        "architectures": ["DSparkDraftModel" if kind == "dspark" else "DFlashDraftModel"],
        "speculators_model_type": kind,
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "verifier": {"name_or_path": "some/target", "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": base,
        "aux_hidden_state_layer_ids": list(AUX),
        "mask_token_id": layout.meaning.mask[0],
        "block_size": 8,
        **settings,
    }
    return replace(layout, settings=ours)


def also(layout: Layout, **changes: Any) -> Layout:
    return replace(layout, **changes)


def stored_as(layout: Layout, *names: tuple[str, str]) -> Layout:
    """Return the layout with its tensors under other names in the file."""
    return replace(layout, tensors=checkpoints.renamed(layout.tensors, names), plain=layout.tensors)


MASK_VECTOR = checkpoints.Weights(77).vector(WIDTH, 0.0, 0.7)
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
SLIDING = ["sliding_attention"] * 2
FULL = ["full_attention"] * 2
MUSE = {
    "architectures": ["MuseGlimmerAssistantModel"],
    "model_type": "muse_glimmer_assistant",
    "dflash_config": None,
    "target_layer_ids": IDS,
    "mask_token_id": 5,
    "layer_types": SLIDING,
    "sliding_window": 9,
}

LAYOUTS: dict[str, Layout] = {
    "standard": flash(0),
    "causal at the top": flash(1, meaning=Meaning(ONE_WAY), is_causal=True),
    "causal in the section": flash(2, {"causal": True}, Meaning(ONE_WAY)),
    "the top wins over the section": flash(3, {"causal": True}, is_causal=False),
    "mixed types": flash(4, meaning=Meaning(((True, 6), (False, None))), **MIXED),
    "mixed types, not causal": flash(5, {"causal": False}, Meaning(((False, 6), (False, None))), **MIXED),
    "sliding types are causal": flash(6, meaning=Meaning(((True, 4),) * 2), layer_types=SLIDING, sliding_window=4),
    "full types": flash(7, layer_types=FULL, sliding_window=4),
    "every layer windowed": flash(8, {"use_swa": True, "swa_window_size": 3}, Meaning(((False, 3),) * 2)),
    "every layer windowed, full types": flash(
        9, {"use_swa": True}, Meaning(((False, 7),) * 2), layer_types=FULL, sliding_window=7
    ),
    "the section's window wins": flash(
        10, {"swa_window_size": 5}, Meaning(((True, 5),) * 2), layer_types=SLIDING, sliding_window=50
    ),
    "sinks": flash(11, {"attention_sink_bias": True}, sinks=True),
    "sinks and windows": flash(
        12,
        {"use_swa": True, "swa_window_size": 6, "attention_sink_bias": True},
        Meaning(((False, 6),) * 2),
        sinks=True,
    ),
    "scaled values": flash(13, {"attention_value_scale": 0.4}, Meaning(value_scale=0.4), bias=True),
    "final state": flash(14, {"use_aux_hidden_state": False, "target_layer_ids": None}, states=0, aux=()),
    "final state, said at the top": flash(15, {"target_layer_ids": None}, states=0, aux=(), use_aux_hidden_state=False),
    "default states": flash(16, {"target_layer_ids": None}, aux=(2, 6), num_target_layers=8),
    "default states of three layers": flash(
        17, {"target_layer_ids": None}, Meaning(((False, None),) * 3), layers=3, aux=(2, 4, 6)
    ),
    "default state of one layer": flash(18, {"target_layer_ids": None}, Meaning(((False, None),)), layers=1, aux=(5,)),
    "states under EAGLE's name": flash(19, eagle_aux_hidden_state_layer_ids=[1, 3, 5]),
    "keys at the top": flash(20, dflash_config=None, mask_token_id=5, target_layer_ids=IDS),
    "block size in the section": flash(21, {"block_size": 8}, block_size=None),
    "small vocabulary": flash(22, extra=checkpoints.vocabulary(WIDTH, VOCAB, 40, seed=22), draft_vocab_size=40),
    "own tables": flash(23, extra=checkpoints.vocabulary(WIDTH, VOCAB, VOCAB, seed=23, embedding=True)),
    "padded head": flash(24, extra=checkpoints.vocabulary(WIDTH, VOCAB, VOCAB + 8, seed=24)),
    "narrower": flash(
        25,
        width=16,
        target_hidden_size=WIDTH,
        extra=checkpoints.vocabulary(16, VOCAB, VOCAB, seed=25, embedding=True),
    ),
    "mask's own vector": also(flash(26, meaning=Meaning(mask=(5, MASK_VECTOR))), mask=MASK_VECTOR),
    "mask's own vector outside the table": also(
        flash(27, {"mask_token_id": VOCAB + 9}, Meaning(mask=(VOCAB + 9, MASK_VECTOR))),
        mask={"mask_token_id": VOCAB + 9, "embedding": MASK_VECTOR[None]},
    ),
    "neighbours turn together": flash(28, meaning=Meaning(neighbours=True), is_neox_style=False, bias=True),
    "biases": flash(29, bias=True, attention_bias=True),
    "rotary base in parameters": flash(
        30, meaning=Meaning(theta=5e5), rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 5e5}
    ),
    "no rotary base": flash(31, meaning=Meaning(theta=1e6), rope_theta=None),
    "encoder's names": stored_as(flash(32), ("fc.", "encoder.fc."), ("hidden_norm.", "encoder.output_norm_enc.")),
    "prefixed": stored_as(flash(33), ("", "model.")),
    "midlayer": stored_as(flash(34), ("layers.0.", "midlayer.")),
    "plain architecture": flash(35, architectures=["Qwen3ForCausalLM"]),
    "transformers' own": flash(36, meaning=Meaning(((False, 10),) * 2), **MUSE),
    "speculators": speculators("dflash", flash(37)),
    "speculators, causal": speculators("dflash", flash(38, meaning=Meaning(ONE_WAY)), sliding_window_non_causal=False),
    "speculators, small vocabulary": speculators(
        "dflash", flash(39, extra=checkpoints.vocabulary(WIDTH, VOCAB, 40, seed=39)), draft_vocab_size=40
    ),
}
SPARKS: dict[str, Layout] = {
    "from the anchor": spark(100),
    "from the anchor, said": spark(101, sample_from_anchor=True),
    "filling in": spark(102, Meaning(), sample_from_anchor=False),
    "filling in, by the bonus key": spark(103, Meaning(), dspark_bonus_anchor=True),
    "small vocabulary": spark(104, rows=40, draft_vocab_size=40),
    "small vocabulary, filling in": spark(105, Meaning(), rows=40, draft_vocab_size=40, sample_from_anchor=False),
    "candidates by option": also(spark(106, Meaning(from_anchor=True, topk=3)), options={"dspark_draft_topk": 3}),
    "candidates by config": spark(107, Meaning(from_anchor=True, topk=2), dspark_draft_topk=2),
    "candidates of a small vocabulary": spark(
        108, Meaning(from_anchor=True, topk=4), rows=40, draft_vocab_size=40, dspark_draft_topk=4
    ),
    "confidence": spark(109, confidence=WIDTH, enable_confidence_head=True),
    "confidence with Markov": spark(
        110,
        confidence=WIDTH + checkpoints.RANK,
        confidence_bias=True,
        enable_confidence_head=True,
        confidence_head_with_markov=True,
        markov_head_type="vanilla",
    ),
    "windows, mixed": spark(111, Meaning(((True, 6), (False, None)), from_anchor=True), **MIXED),
    "speculators": speculators(
        "dspark",
        spark(112, Meaning(), confidence=WIDTH),
        markov_rank=checkpoints.RANK,
        enable_confidence_head=True,
    ),
    "speculators, from the anchor": speculators(
        "dspark", spark(113), markov_rank=checkpoints.RANK, sample_from_anchor=True
    ),
    "speculators, windows in both directions": speculators(
        "dspark",
        spark(116, Meaning(((False, 6), (False, None))), **MIXED),
        markov_rank=checkpoints.RANK,
        sliding_window_non_causal=True,
    ),
    "speculators, windows": speculators(
        "dspark", spark(117, Meaning(((True, 6), (False, None))), **MIXED), markov_rank=checkpoints.RANK
    ),
    "block size by its own key": spark(118, block_size=None, dspark_block_size=5),
    "bare Markov names": stored_as(
        spark(114),
        ("markov_head.markov_w1.weight", "markov_head.markov_w1"),
        ("markov_head.markov_w2.weight", "markov_head.markov_w2"),
    ),
    "no rotary base": spark(115, Meaning(from_anchor=True, theta=1e6), rope_theta=None),
}
EVERY = {f"dflash: {name}": layout for name, layout in LAYOUTS.items()} | {
    f"dspark: {name}": layout for name, layout in SPARKS.items()
}
