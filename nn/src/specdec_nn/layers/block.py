"""One transformer block of a drafter over flat rows, made of the ops of `specdec_nn`; it knows no method and no file.

Weights come by the names of Llama checkpoints. The block takes its attention input and its residual apart, since
drafters differ in what they feed it: a normed hidden state, an unnormed one, or two vectors side by side.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_core.registry.kernels import Kernels
from specdec_nn.cache.arena import KVArena
from specdec_nn.layers.block_config import BlockConfig
from specdec_nn.layers.rotary import Rotary
from specdec_nn.ops.attention.reference import AttentionStep, write_pages
from specdec_nn.ops.linear.reference import PackedLinear

if TYPE_CHECKING:
    from specdec_nn.fused.passes import Pass

logger = logging.getLogger("specdec_nn.layers")


class Linear:
    """y = x W^T + b by the best `linear` kernel; x may have any leading shape."""

    def __init__(self, weight: Tensor, bias: Tensor | None, kernel: Callable[[Tensor, PackedLinear], Tensor]) -> None:
        """Take a weight [out, in] and a bias [out] or None."""
        self.packed = PackedLinear(weight, bias)
        self._kernel = kernel

    def __call__(self, x: Tensor) -> Tensor:
        """Return [..., out] from [..., in]; kernels take rows, [N, in]."""
        if x.ndim == 2:
            return self._kernel(x, self.packed)
        return self._kernel(x.reshape(-1, x.shape[-1]), self.packed).view(*x.shape[:-1], -1)


class RMSNorm:
    """w x / sqrt(mean(x^2) + eps); with `plus_one`, 1 + w in place of w."""

    def __init__(self, weight: Tensor, eps: float, *, plus_one: bool = False) -> None:
        """Take the weight [width]."""
        # 1 + w would lose bits of w in low precision, so such rows are normed in float32, as models with it do.
        self.weight = 1 + weight.float() if plus_one else weight
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """Return the normed rows."""
        return F.rms_norm(x.to(self.weight.dtype), self.weight.shape, self.weight, self._eps).to(x.dtype)


class Attention:
    """The attention of a block by itself, of a drafter that has no MLP; norms and the residual are the caller's."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        config: BlockConfig,
        rotary: Rotary,
        kernels: Kernels,
        device: torch.device,
        layer: int,
    ) -> None:
        """Take tensors by their names inside the layer (`self_attn.q_proj.weight`, ...), and its number in the arena.

        Biases, per-head norms (`self_attn.q_norm.weight`) and sinks (`self_attn.sinks`, a logit a head) are used where
        they are present. Raises KeyError for a tensor that is missing.
        """
        linear = kernels.get("linear", device)
        self._config, self._rotary, self._layer = config, rotary, layer
        self._attention = kernels.get("attention", device)
        q, k, v = (f"self_attn.{name}_proj" for name in "qkv")
        weight, bias = _stack(tensors, q, k, v)
        keys = config.heads * config.head_dim  # where queries end
        self._qkv = Linear(weight, bias, linear)
        self._kv = Linear(weight[keys:], None if bias is None else bias[keys:], linear)
        self._sinks = tensors.get("self_attn.sinks")
        self._o = Linear(*_stack(tensors, "self_attn.o_proj"), linear)
        norms = [tensors.get(f"self_attn.{name}_norm.weight") for name in "qk"]
        self._qk_norms = [None if weight is None else RMSNorm(weight, config.eps) for weight in norms]

    def write(self, x: Tensor, turn: tuple[Tensor, Tensor], arena: KVArena, step: AttentionStep) -> None:
        """Write the keys and values of rows x [N, in] that ask nothing themselves, for later rows to see."""
        c = self._config
        k, v = self._kv(x).view(x.shape[0], 2 * c.kv_heads, c.head_dim).chunk(2, dim=1)
        k = self._turned(k, self._qk_norms[1], turn)
        write_pages(k, v, *arena.layer(self._layer, k, v), step)

    def attend(self, x: Tensor, turn: tuple[Tensor, Tensor], arena: KVArena, step: AttentionStep) -> Tensor:
        """Return what attention alone makes of rows x [N, in], whose keys and values it writes."""
        c = self._config
        rows = x.shape[0]
        parts = self._qkv(x).view(rows, c.heads + 2 * c.kv_heads, c.head_dim)
        ends = (c.heads, c.heads + c.kv_heads)
        q, k, v = torch.tensor_split(parts, ends, dim=1)
        q, k = (self._turned(heads, norm, turn) for heads, norm in zip((q, k), self._qk_norms, strict=True))
        pages = arena.layer(self._layer, k, v)
        scaling = c.head_dim**-0.5 if c.scaling is None else c.scaling
        mixed: Tensor = self._attention(q, k, v, *pages, step, scaling=scaling, window=c.window, sinks=self._sinks)
        return self._o(mixed.reshape(rows, -1))

    def _turned(self, heads: Tensor, norm: RMSNorm | None, turn: tuple[Tensor, Tensor]) -> Tensor:
        """Norm and turn queries or keys [N, heads, head_dim]."""
        turned = self._rotary.rotate(heads if norm is None else norm(heads), *turn)
        return F.rms_norm(turned, (self._config.head_dim,), None, self._config.eps) if self._config.l2_norm else turned


@functools.cache
def _log_once(reason: str) -> None:
    logger.info("a drafter's block runs op by op, slower than in one call: %s", reason)


class Block(Attention):
    """Attention, then a gated MLP; norms before attention are the caller's.

    On a CPU few rows run in one call of the compiled pass, where the block is made of what it knows
    (`specdec_nn.fused.block`); the parts by themselves (`attend`, `mlp`) do not.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        config: BlockConfig,
        rotary: Rotary,
        kernels: Kernels,
        device: torch.device,
        layer: int,
    ) -> None:
        """Take what `Attention` takes, with the tensors of the MLP and of the norm before it."""
        super().__init__(tensors, config, rotary, kernels, device, layer)
        linear = kernels.get("linear", device)
        self._gate_up = Linear(*_stack(tensors, "mlp.gate_proj", "mlp.up_proj"), linear)
        self._down = Linear(*_stack(tensors, "mlp.down_proj"), linear)
        self._post = RMSNorm(tensors["post_attention_layernorm.weight"], config.eps)
        self._act = _activation(config.activation)
        own_backends = {kernels.backend(op, device) for op in ("linear", "attention")}
        self.fused = self._fuse() if device.type == "cpu" and own_backends == {"numba"} else None

    def _fuse(self) -> Pass | None:
        # Here, since numba, whose import takes a second, is for CPUs alone.
        from specdec_nn.fused.block import fused_block
        from specdec_nn.fused.unfit import Unfit

        products = {"qkv": self._qkv, "o": self._o, "gate_up": self._gate_up, "down": self._down}
        norms = {"mlp_norm": self._post, "q_norm": self._qk_norms[0], "k_norm": self._qk_norms[1]}
        try:
            return fused_block(
                self._config,
                {name: linear.packed for name, linear in products.items()},
                {name: norm.weight for name, norm in norms.items() if norm is not None},
                self._sinks,
                self._layer,
            )
        except Unfit as unfit:
            _log_once(str(unfit))
            return None

    def __call__(
        self, x: Tensor, residual: Tensor, turn: tuple[Tensor, Tensor], arena: KVArena, step: AttentionStep
    ) -> Tensor:
        """Return residual + attention(x), plus the MLP of its norm, [N, H].

        x [N, in] is what q, k and v are made of, residual [N, H], turn the cosines and sines of the rows' positions.
        """
        if self.fused is not None and self.fused.serves(len(x)):
            state = residual.clone(memory_format=torch.contiguous_format)
            return self.fused.run(state, x.contiguous(), turn, step, arena)
        hidden = residual + self._scaled(self.attend(x, turn, arena, step))
        return hidden + self._scaled(self.mlp(self.normed(hidden)))

    def normed(self, x: Tensor) -> Tensor:
        """Return what the MLP takes of a residual [N, H]."""
        return self._post(x)

    def mlp(self, x: Tensor) -> Tensor:
        """Return what the MLP alone makes of normed rows [N, H]."""
        gate, up = self._gate_up(x).chunk(2, dim=-1)
        return self._down(self._act(gate) * up)

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self._config.residual_scale == 1.0 else x * self._config.residual_scale


def _stack(tensors: Mapping[str, Tensor], *names: str) -> tuple[Tensor, Tensor | None]:
    """Return the weights of several linears as one, and their biases, zeros where only some have one."""
    weights = [tensors[f"{name}.weight"] for name in names]
    biases = [tensors.get(f"{name}.bias") for name in names]
    if all(bias is None for bias in biases):
        return torch.cat(weights), None
    filled = [w.new_zeros(w.shape[0]) if b is None else b for w, b in zip(weights, biases, strict=True)]
    return torch.cat(weights), torch.cat(filled)


def _activation(name: str) -> Callable[[Tensor], Tensor]:
    from transformers.activations import ACT2FN

    activation: Callable[[Tensor], Tensor] = F.silu if name == "silu" else ACT2FN[name]
    return activation
