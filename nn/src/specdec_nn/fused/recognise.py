"""Finds the blocks of a decoder that the fused pass knows, by the names and types of their modules, never by a model's.

What a module computes is found by asking it: a norm and an activation are those whose results theirs equal. What no
structure shows, such as a factor somewhere in a `forward`, the trial finds.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_nn.fused.elementwise import GELU_TANH, ONE_PLUS, PLAIN, SILU
from specdec_nn.fused.parts import Block, Norm, Shape
from specdec_nn.fused.unfit import Unfit
from specdec_nn.hf.binding import packed_linear
from specdec_nn.hf.model import FlatModel
from specdec_nn.ops.linear.numba import InPlace, pack
from specdec_nn.ops.linear.reference import PackedLinear

ATTENTION: Final = {"q_proj", "k_proj", "v_proj", "o_proj"}
HEAD_NORMS: Final = {"q_norm", "k_norm"}
MLP: Final = {"gate_proj", "up_proj", "down_proj", "act_fn"}
TWO_NORMS: Final = {"input_layernorm", "post_attention_layernorm"}
FOUR_NORMS: Final = TWO_NORMS | {"pre_feedforward_layernorm", "post_feedforward_layernorm"}
DECODER: Final = {"embed_tokens", "layers", "norm", "rotary_emb"}


@dataclass(slots=True, eq=False)
class Stack:
    """A decoder: blocks of equal shapes between an embedding and a last norm."""

    decoder: nn.Module
    embedding: nn.Module
    factor: float
    rotary: nn.Module
    blocks: list[Block]
    norm: Norm
    shape: Shape


def recognise(flat: FlatModel) -> Stack:
    """Return what the decoder of a model that has passed its trial is made of; raises Unfit with the reason."""
    decoder = flat.decoder
    _expect(decoder, "the decoder", DECODER)
    layers: nn.ModuleList = decoder.layers  # type: ignore[assignment] # attributes of a module are untyped
    if len(layers) != flat.num_layers:
        raise Unfit(f"the decoder has {len(layers)} layers, its configuration {flat.num_layers}")
    calls = {id(flat.binding.module_of(call)): call for call in flat.binding.calls()}
    styles: set[int] = set()
    activations: set[int] = set()
    shapes: set[tuple[int, int, int]] = set()
    blocks = []
    for n, layer in enumerate(layers):
        where = f"layer {n} ({type(layer).__name__})"
        attention: Any = getattr(layer, "self_attn", None)
        call = calls.get(id(attention))
        if call is None:
            raise Unfit(f"{where} has no module self_attn that calls the attention interface")
        names = set(layer._modules)
        four = "pre_feedforward_layernorm" in names
        _expect(layer, where, {"self_attn", "mlp"} | (FOUR_NORMS if four else TWO_NORMS))
        head_norms = HEAD_NORMS if "q_norm" in attention._modules else set()
        _expect(attention, f"{where}, self_attn", ATTENTION | head_norms)
        mlp: Any = layer.mlp
        _expect(mlp, f"{where}, mlp", MLP)
        places: dict[str, Any] = {"in_norm": layer.input_layernorm}
        if four:
            places |= {
                "attention_norm": layer.post_attention_layernorm,
                "mlp_norm": layer.pre_feedforward_layernorm,
                "out_norm": layer.post_feedforward_layernorm,
            }
        else:
            places["mlp_norm"] = layer.post_attention_layernorm
        if head_norms:
            places |= {"q_norm": attention.q_norm, "k_norm": attention.k_norm}
        norms = {}
        for place, module in places.items():
            norms[place], style = _norm(module, f"{where}, {place}")
            styles.add(style)
        linears = {"q": attention.q_proj, "k": attention.k_proj, "v": attention.v_proj, "o": attention.o_proj}
        linears |= {"gate": mlp.gate_proj, "up": mlp.up_proj, "down": mlp.down_proj}
        products = {place: _product(module, f"{where}, {place}") for place, module in linears.items()}
        activations.add(_activation(mlp.act_fn, where))
        dims = int(attention.head_dim)
        q, k, v = (products[place][0].out_features for place in "qkv")
        if q % dims or k % dims or k != v or ("q_norm" in norms and norms["q_norm"].weight.numel() != dims):
            raise Unfit(f"{where} has heads of several widths, or norms over all heads")
        shapes.add((q // dims, k // dims, dims))
        blocks.append(
            Block(
                norms=norms,
                products=products,
                inner=products["gate"][0].out_features,
                arena=call.index,
                rope=_rope_type(decoder, attention, n),
                scaling=call.scaling,
                softcap=call.softcap,
                window=call.window,
                sinks=None if call.sinks is None else call.sinks.detach().float().contiguous(),
                residual=float(getattr(layer, "residual_multiplier", 1.0)),
            )
        )
    final, style = _norm(decoder.norm, "the last norm")
    styles.add(style)
    if len(styles) != 1 or len(activations) != 1 or len(shapes) != 1:
        raise Unfit("its layers are not all of one kind")
    heads, kv_heads, dims = shapes.pop()
    hidden = blocks[0].products["q"][0].in_features
    return Stack(
        decoder=decoder,
        embedding=decoder.embed_tokens,  # type: ignore[arg-type] # attributes of a module are untyped
        factor=float(getattr(decoder, "embedding_multiplier", 1.0)),
        rotary=decoder.rotary_emb,  # type: ignore[arg-type] # attributes of a module are untyped
        blocks=blocks,
        norm=final,
        shape=Shape(
            hidden=hidden,
            inputs=hidden,
            heads=heads,
            kv_heads=kv_heads,
            dims=dims,
            style=styles.pop(),
            activation=activations.pop(),
            dtype=flat.dtype,
        ),
    )


def _expect(module: nn.Module, where: str, names: set[str]) -> None:
    """Refuse a module that has other parts than these, tensors of its own, or hooks."""
    found = {name for name, child in module._modules.items() if child is not None}
    if found != names:
        more, less = sorted(found - names), sorted(names - found)
        what = [f"has {', '.join(more)}"] if more else []
        what += [f"lacks {', '.join(less)}"] if less else []
        raise Unfit(f"{where} ({type(module).__name__}) {' and '.join(what)}")
    if any(parameter is not None for parameter in module._parameters.values()):
        raise Unfit(f"{where} ({type(module).__name__}) has parameters of its own")


def _product(module: nn.Module, where: str) -> tuple[PackedLinear, InPlace]:
    if type(module) is not nn.Linear or "forward" in module.__dict__:
        raise Unfit(f"{where} is a {type(module).__name__}, not a plain linear layer")
    packed = packed_linear(module)
    form = packed.form or pack(packed)
    if form is None:
        raise Unfit(f"{where} has a weight of {module.weight.dtype}, which the kernel does not serve here")
    return packed, form


def _norm(module: Any, where: str) -> tuple[Norm, int]:
    """Return a norm and its style: that of two formulas which gives what the module gives."""
    weight: Any = getattr(module, "weight", None)
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not isinstance(weight, Tensor) or weight.dim() != 1 or not isinstance(epsilon, float) or module._modules:
        raise Unfit(f"{where} is a {type(module).__name__}, not a norm with a weight and an epsilon")
    if getattr(module, "bias", None) is not None:
        raise Unfit(f"{where} is a {type(module).__name__} with a bias")
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(4, weight.numel(), generator=generator) * torch.tensor([[0.01], [0.3], [1.0], [20.0]])).to(weight)
    with torch.inference_mode():
        theirs = module(x)
        scaled = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + epsilon)
        plain = weight.float() * scaled.to(x.dtype).float()
        one_plus = scaled * (1.0 + weight.float())
    unit = torch.finfo(x.dtype).eps
    for style, mine in ((PLAIN, plain), (ONE_PLUS, one_plus)):
        if theirs.dtype == x.dtype and torch.allclose(theirs.float(), mine, rtol=2 * unit, atol=unit * 1e-3):
            return Norm(weight.detach().float().contiguous().clone(), epsilon), style
    raise Unfit(f"{where} is a {type(module).__name__}, which is no RMS norm of a known form")


def _activation(module: nn.Module, where: str) -> int:
    x = torch.linspace(-9.0, 9.0, 73)
    with torch.inference_mode():
        theirs = module(x)
    for kind, mine in ((SILU, F.silu(x)), (GELU_TANH, F.gelu(x, approximate="tanh"))):
        if torch.allclose(theirs, mine, rtol=1e-5, atol=1e-6):
            return kind
    raise Unfit(f"{where} has the activation {type(module).__name__}, which is not known")


def _rope_type(decoder: Any, attention: Any, n: int) -> str | None:
    """Return what the rotary embedding is to be asked for; None for a layer without."""
    if not getattr(attention, "use_rope", True):
        return None
    parameters = list(inspect.signature(decoder.rotary_emb.forward).parameters)
    if parameters == ["x", "position_ids"]:
        return ""
    types = getattr(decoder.config, "layer_types", None)
    if parameters == ["x", "position_ids", "layer_type"] and types is not None:
        return str(types[n])
    raise Unfit(f"its rotary embedding ({type(decoder.rotary_emb).__name__}) takes {', '.join(parameters)}")
