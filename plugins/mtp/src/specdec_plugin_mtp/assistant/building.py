"""From an assistant's checkpoint to a drafter: reads the weights and wires them to the target; no drafting here."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from specdec_core.context import MethodContext, ProposerBuild
from specdec_core.errors import ConfigError, TargetError
from specdec_nn.checkpoints.head_weights import HeadWeights
from specdec_nn.drafters.draft_sampler import DraftSampler
from specdec_plugin_mtp.assistant.drafter import AssistantDrafter, AssistantPlan
from specdec_plugin_mtp.assistant.layout import (
    BEFORE,
    BEHIND,
    CENTROIDS,
    EMBEDDING,
    HEAD,
    NORM,
    NORMS,
    AssistantReader,
    Layout,
)
from specdec_plugin_mtp.assistant.network import Assistant, AssistantLayer, Turn
from specdec_plugin_mtp.options import MtpOptions

CLASSES = ("Gemma4TextConfig", "Gemma4TextRotaryEmbedding")


def make(ctx: MethodContext[MtpOptions], build: ProposerBuild) -> AssistantDrafter:
    """Build the proposer.

    Raises TargetError where the host does not lend the target's keys, and ConfigError for a checkpoint that has changed
    since it was checked, or where transformers lacks the family.
    """
    reader = AssistantReader(ctx.checkpoint.original, build.target.info)
    layout = reader.checked()
    weights = HeadWeights(
        reader, build.target, build.kernels, [name for name in reader.files if not name.startswith(CENTROIDS)]
    )
    assistant = _assistant(layout, weights, build)
    try:
        keys = build.target_keys()
    except TargetError as error:
        message = f"{ctx.method} with {ctx.checkpoint.model!r} cannot draft here: {error}; use another method"
        raise TargetError(message) from error
    plan = AssistantPlan(assistant, keys, DraftSampler.of(build), ctx.options.position_offset)
    return AssistantDrafter(plan, keys)


def _assistant(layout: Layout, weights: HeadWeights, build: ProposerBuild) -> Assistant:
    from transformers.activations import ACT2FN

    text, target = layout.text, build.target
    eps = float(text.get("rms_norm_eps", 1e-6))
    activation = ACT2FN[str(text.get("hidden_activation") or "gelu_pytorch_tanh")]
    layers = [_layer(layout, number, weights, eps, activation) for number in range(len(layout.kinds))]
    cap = text.get("final_logit_softcapping")
    return Assistant(
        embed=target.embed,
        before=weights.linear(BEFORE.removesuffix(".weight")),
        layers=layers,
        norm=weights.norm(NORM, eps),
        behind=weights.linear(BEHIND.removesuffix(".weight")),
        head=weights.linear((HEAD if HEAD in weights else EMBEDDING).removesuffix(".weight")),
        turns=_turns(layout, target.device, target.dtype),
        suppressed=torch.tensor(layout.suppressed, dtype=torch.int64, device=target.device),
        softcap=None if cap is None else float(cap),
        ids=target.info.vocab_size,
    )


def _layer(
    layout: Layout, number: int, weights: HeadWeights, eps: float, activation: Callable[[Tensor], Tensor]
) -> AssistantLayer:
    at, kind = f"layers.{number}.", layout.kinds[number]
    before, behind, before_mlp, behind_mlp = (weights.norm(at + name, eps) for name in NORMS)
    return AssistantLayer(
        kind=kind,
        source=layout.sources[number],
        window=layout.window if kind == "sliding_attention" else None,
        heads=int(layout.text["num_attention_heads"]),
        norms=(before, behind, before_mlp, behind_mlp),
        query=weights.linear(f"{at}self_attn.q_proj"),
        query_norm=weights.norm(f"{at}self_attn.q_norm.weight", eps),
        output=weights.linear(f"{at}self_attn.o_proj"),
        gate_up=weights.stacked([f"{at}mlp.{name}_proj.weight" for name in ("gate", "up")]),
        down=weights.linear(f"{at}mlp.down_proj"),
        activation=activation,
        scalar=weights.get(f"{at}layer_scalar"),
    )


def _turns(layout: Layout, device: torch.device, dtype: torch.dtype) -> Callable[[Tensor], Mapping[str, Turn]]:
    """Return what makes cosines and sines, by the family's own class: its types of layers have rotary keys apart."""
    try:
        from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig
        from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRotaryEmbedding
    except ImportError as error:
        import transformers

        message = (
            f"the rotary tables of Gemma 4 assistants are made by {' and '.join(CLASSES)}, which transformers "
            f"{transformers.__version__} lacks ({error}); install one that has them"
        )
        raise ConfigError(message) from error
    keys: dict[str, Any] = copy.deepcopy({k: v for k, v in layout.text.items() if k not in ("model_type", "dtype")})
    rotary = Gemma4TextRotaryEmbedding(Gemma4TextConfig.from_dict(keys)).to(device)
    like = torch.empty(0, device=device, dtype=dtype)

    def turns(positions: Tensor) -> dict[str, Turn]:
        made = {kind: rotary(like, positions[None], kind) for kind in set(layout.kinds)}
        return {kind: (cos[0][:, None], sin[0][:, None]) for kind, (cos, sin) in made.items()}

    return turns
