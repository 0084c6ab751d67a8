"""Every layout of an EAGLE head as a random checkpoint, with the oracle's reading of it, and nothing of the plugin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import checkpoints
from oracle_head import Head
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
LLAMA_3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 4.0, "beta_slow": 1.0}
MINICPM = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 8}


@dataclass(frozen=True)
class Layout:
    """A checkpoint: method, the oracle's flavour, config.json, tensors; `seed` gives drafts with clear margins.

    `plain` is what a config.json of the speculators format stands for, by docs/checkpoints.md.
    """

    method: str
    flavour: str
    settings: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    plain: Mapping[str, Any] | None = None

    @property
    def width_scale(self) -> float:
        """What a MiniCPM target divides its states by in front of its head."""
        return WIDTH / self.settings["dim_model_base"] if self.flavour == "minicpm" else 1.0

    def head(self) -> Head:
        embedding, lm_head = TARGET.get_input_embeddings().weight, TARGET.get_output_embeddings().weight
        config = {"num_hidden_layers": 1, **(self.plain or self.settings)}
        tensors = {
            name.replace("transformer.", "layers.0.").replace("fusion_fc.", "fc."): tensor
            for name, tensor in self.tensors.items()
        }
        return Head(self.flavour, config, tensors, embedding=embedding.detach(), lm_head=lm_head.detach())

    def build(self, folder: Path, k: int = 4, **options: Any) -> tuple[Proposer, ResolvedConfig, FakeTarget]:
        """Write the checkpoint, and make its proposer over the tiny target."""
        model = checkpoints.save(folder, self.tensors, self.settings)
        target = FamilyTarget(self.width_scale)
        registry = Registry(Catalog.discover(), strict=True)
        keys = {"method": self.method, "model": model, "num_speculative_tokens": k, **self.options, **options}
        resolved = resolve(keys, target.info, registry)
        return make_proposer(resolved, target, registry), resolved, target


class FamilyTarget(FakeTarget):
    """The tiny target, as one of a family that divides its states in front of its head."""

    def __init__(self, divisor: float) -> None:
        super().__init__(TARGET)
        self._divisor = divisor

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return super().compute_logits(hidden / self._divisor)


def one(seed: int = 0, flavour: str = "llama", tensors: Mapping[str, Tensor] | None = None, **settings: Any) -> Layout:
    """Return an EAGLE-1 layout; keys `layers`, `bias` and `prefix` are those of `checkpoints.eagle_1`."""
    made = {key: settings.pop(key) for key in ("layers", "bias", "prefix") if key in settings}
    weights = checkpoints.eagle_1(WIDTH, seed=seed, **made) | dict(tensors or {})
    fc = f"{made.get('prefix', '')}fc.weight"
    weights[fc] = 0.4 * weights[fc]  # without a norm in front, attention of wide vectors would be chaotic
    config = checkpoints.config(WIDTH, num_hidden_layers=made.get("layers", 1), **settings)
    return Layout("eagle", flavour, config, weights, seed=seed)


def normed(seed: int, names: tuple[str, ...], layers: int = 1) -> dict[str, Tensor]:
    """Return the norms that families other than Llama have besides."""
    w = checkpoints.Weights(seed + 1000)
    names = (*names, *(f"layers.{i}.input_layernorm.weight" for i in range(layers)))
    return {name: w.vector(WIDTH) for name in names}


def three(seed: int = 0, options: Mapping[str, Any] | None = None, **settings: Any) -> Layout:
    """Return an EAGLE-3 layout; keys that `checkpoints.eagle_3` knows go to it, the others to config.json."""
    known = ("target_width", "aux", "draft_vocab", "layer", "layers", "qk_norm", "bias", "own_embedding", "mask")
    made = {key: settings.pop(key) for key in known if key in settings}
    made |= {key: settings[key] for key in ("norm_before_fc", "fc_norm") if key in settings}
    width = settings.pop("width", WIDTH)
    if width != WIDTH:
        made["target_width"] = WIDTH
    made = {"vocab": VOCAB, "draft_vocab": 40, **made}
    config = checkpoints.config(width, num_hidden_layers=made.get("layers", 1), **settings)
    return Layout("eagle3", "eagle3", config, checkpoints.eagle_3(width, seed=seed, **made), options or {}, seed)


def renamed(layout: Layout, old: str, new: str) -> Layout:
    """Return the layout with a part of its tensors' names replaced, as some producers write them."""
    return replace(layout, tensors={name.replace(old, new): tensor for name, tensor in layout.tensors.items()})


def changed(layout: Layout, **tensors: Tensor | None) -> Layout:
    """Return the layout with tensors replaced, None leaving one out."""
    kept = {name: tensor for name, tensor in {**layout.tensors, **tensors}.items() if tensor is not None}
    return replace(layout, tensors=kept)


def inside(layout: Layout, key: str) -> Layout:
    """Return the layout with a key of config.json moved into `eagle_config`."""
    settings = dict(layout.settings)
    return replace(layout, settings={**settings, "eagle_config": {key: settings.pop(key)}, key: None})


def own_head(seed: int, rows: int, gain: float = 4.0) -> dict[str, Tensor]:
    """Return a head of a number of rows."""
    return {"lm_head.weight": checkpoints.Weights(seed + 2000).matrix(rows, WIDTH, gain)}


def biases(seed: int) -> dict[str, Tensor]:
    """Return biases of all four projections of the first layer."""
    w = checkpoints.Weights(seed + 3000)
    sizes = {"q": 32, "k": 16, "v": 16, "o": WIDTH}
    return {f"layers.0.self_attn.{name}_proj.bias": w.vector(size, 0.0) for name, size in sizes.items()}


def speculators(kind: str, layout: Layout, **settings: Any) -> Layout:
    """Return the layout in the speculators format; the missing norm_before_residual means true in one of its types."""
    base = {key: value for key, value in layout.settings.items() if key != "architectures"}
    ours = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": kind,
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "verifier": {"name_or_path": "some/target", "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": base,
        "draft_vocab_size": 40,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        **settings,
    }
    return replace(layout, settings=ours, plain={**base, "norm_before_residual": kind == "eagle3", **settings})


def old_speculators(layout: Layout, **settings: Any) -> Layout:
    """Return an EAGLE-1 layout as files of speculators' type eagle have it, the first of that format."""
    made = speculators("eagle", renamed(renamed(layout, "layers.0.", "transformer."), "fc.", "fusion_fc."))
    ours = {
        **{key: made.settings[key] for key in ("speculators_model_type", "speculators_config")},
        "architectures": ["EagleSpeculator", "LlamaDecoderLayer"],
        "transformer_layer_architecture": "LlamaDecoderLayer",
        "transformer_layer_config": made.settings["transformer_layer_config"],
        "fusion_bias": "fusion_fc.bias" in made.tensors,
        "layernorms": False,
        **settings,
    }
    return replace(made, settings=ours, plain=layout.settings)


LLAMA_4 = {"architectures": ["Llama4ForCausalLM"], "model_type": "llama4_text"}
MINI = {"architectures": ["MiniCPMForCausalLM"], "model_type": "minicpm", **MINICPM}
MINI_NORMS = ("input_norm1.weight", "input_norm2.weight")

LAYOUTS: dict[str, Layout] = {
    "eagle": one(),
    "eagle-fc-bias": one(1, bias=True),
    "eagle-three-layers": one(2, layers=3),
    "eagle-prefixed": one(3, prefix="model."),
    "eagle-own-head-and-embedding": one(
        4, tensors={**own_head(4, VOCAB, 0.7), "embed_tokens.weight": checkpoints.Weights(9).matrix(VOCAB, WIDTH, 3.0)}
    ),
    "eagle-padded-head": one(5, tensors=own_head(5, VOCAB + 8)),
    "eagle-attention-bias": one(6, tensors=biases(6)),
    "eagle-llama4": one(7, "llama4", normed(7, ("norm.weight",)), **LLAMA_4),
    "eagle-llama4-l2-norm": one(108, "llama4", normed(8, ("norm.weight",), 2), layers=2, use_qk_norm=True, **LLAMA_4),
    "eagle-mistral": renamed(
        one(9, "mistral", normed(9, ("norm.weight",)), architectures=["MistralForCausalLM"]), "fc.", "eagle_linear."
    ),
    "eagle-minicpm": one(10, "minicpm", normed(10, MINI_NORMS, 2), layers=2, **MINI),
    "eagle-minicpm-mup": one(11, "minicpm", normed(11, MINI_NORMS), mup_denominator=32, **MINI),
    "eagle-minicpm-own-head": one(12, "minicpm", {**normed(12, MINI_NORMS), **own_head(12, VOCAB)}, **MINI),
    "eagle-speculators": old_speculators(one(50, tensors=own_head(50, VOCAB))),
    "eagle-speculators-fc-bias": old_speculators(one(51, bias=True)),
    "eagle3": three(),
    "eagle3-norm-before-fc": three(1, norm_before_fc=True),
    "eagle3-norm-before-fc-inside": inside(three(2, norm_before_fc=True), "norm_before_fc"),
    "eagle3-fc-norm": three(3, fc_norm=True),
    "eagle3-norm-before-residual": three(4, norm_before_residual=True),
    "eagle3-norm-output": three(5, norm_output=True),
    "eagle3-all-norms": three(6, norm_before_fc=True, norm_before_residual=True, norm_output=True, layers=2),
    "eagle3-attention-bias": three(7, bias=True, attention_bias=True),
    "eagle3-qwen3": three(8, qk_norm=True, architectures=["Qwen3ForCausalLM"], layers=2),
    "eagle3-narrower": three(9, width=16),
    "eagle3-wider-own-embedding": three(10, width=48, layer="layers.0."),
    "eagle3-own-embedding": three(11, own_embedding=True, draft_vocab=VOCAB),
    "eagle3-whole-vocabulary": three(12, draft_vocab=VOCAB, draft_vocab_size=VOCAB),
    "eagle3-borrowed-head": changed(three(13, draft_vocab=VOCAB), **{"lm_head.weight": None}),
    "eagle3-padded-head": changed(three(14, draft_vocab=VOCAB), **own_head(14, VOCAB + 8)),
    "eagle3-three-layers": three(15, layers=3, layer="layers.0."),
    "eagle3-final-state": three(16, aux=0, eagle_config={"use_aux_hidden_state": False}),
    "eagle3-one-state": three(17, aux=1, eagle_aux_hidden_state_layer_ids=[4]),
    "eagle3-two-states": three(18, aux=2, eagle_aux_hidden_state_layer_ids=[6, 1]),
    "eagle3-four-states": three(19, aux=4, fc_norm=True, eagle_aux_hidden_state_layer_ids=[1, 3, 5, 8]),
    "eagle3-rope-theta": three(20, rope_theta=5e6),
    "eagle3-llama3-scaling": three(21, rope_theta=5e5, rope_scaling={"rope_type": "llama3", **LLAMA_3}),
    "eagle3-llama3-parameters": three(22, rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **LLAMA_3}),
    "eagle3-yarn-scaling": three(23, rope_theta=1.5e5, rope_scaling={"type": "yarn", **YARN}),
    "eagle3-yarn-parameters": three(24, rope_parameters={"rope_type": "yarn", "rope_theta": 1e6, **YARN}),
    "eagle3-yarn-gpt-oss": three(
        25, rope_theta=1.5e5, rope_scaling={"rope_type": "yarn", "factor": 32.0, "truncate": False, **YARN}
    ),
    "eagle3-linear-scaling": three(26, rope_scaling={"type": "linear", "factor": 4.0}),
    "eagle3-mrope-scaling": three(40, rope_theta=1e6, rope_scaling={"type": "mrope", "mrope_section": [1, 1, 2]}),
    "eagle3-mrope-parameters": three(
        43, rope_parameters={"rope_type": "mrope", "rope_theta": 1e6, "mrope_section": [1, 1, 2]}
    ),
    "eagle3-mrope-default": three(
        42,
        rope_parameters={
            "rope_type": "default",
            "type": "default",
            "rope_theta": 1e6,
            "mrope_section": [1, 1, 2],
            "mrope_interleaved": True,
        },
    ),
    "eagle3-half-rotated": three(27, partial_rotary_factor=0.5),
    "eagle3-speculators": speculators("eagle3", three(29, layer="layers.0.")),
    "eagle3-speculators-qwen3": speculators(
        "eagle3",
        three(30, layer="layers.0.", qk_norm=True, norm_before_fc=True, model_type="qwen3"),
        norm_before_fc=True,
        norm_before_residual=False,
    ),
    "eagle3-bare-config": three(28, model_type="eagle", architectures=None),
}
PARALLEL: dict[str, Layout] = {
    "peagle": three(0, mask=True, mask_token_id=5),
    "peagle-norm-before-fc": three(1, mask=True, pard_token=7, norm_before_fc=True, norm_before_residual=True),
    "peagle-fc-norm": three(2, mask=True, fc_norm=True, dflash_config={"mask_token_id": 9}, mask_token_id=1),
    "peagle-speculators": speculators("peagle", three(31, layer="layers.0.", mask=True), mask_token_id=6),
    "peagle-two-layers": three(3, mask=True, ptd_token_id=11, layers=2, draft_vocab=VOCAB),
}
