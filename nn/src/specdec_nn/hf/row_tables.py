"""Rotary tables that depend on a length, chosen row by row: types `longrope` and `dynamic`; knows rows, not requests.

transformers chooses one table for a whole forward, by its largest position. Over a flat batch of several requests each
row says for which length it is, so that no request changes another's. Sources: LongRoPE, arXiv 2402.13753, section 3
(short and long factors); dynamic NTK scaling as in YaRN, arXiv 2309.00071, appendix A.2.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

Kind = Literal["longrope", "dynamic"]
KINDS: Final = ("longrope", "dynamic")
SWITCH: Final = "original_max_position_embeddings"


class RowTables:
    """The rotary embedding of one model, made to read a length for each row.

    kind    "longrope": one table for lengths up to the switch and another above; "dynamic": above it, one for each
    switch  the largest length for which the table is the one that is there at load
    """

    def __init__(self, kind: Kind, switch: int, modules: list[nn.Module]) -> None:
        """Take the modules that make cosines and sines, all of one kind and switch."""
        self.kind, self.switch = kind, switch
        self._modules = [(module, _plain_forward(module)) for module in modules]
        self._long: dict[int, Tensor] = {}  # of longrope, by module

    @classmethod
    def of(cls, model: nn.Module) -> RowTables | None:
        """Return the tables of a model whose rotary embedding depends on a length.

        None for others, and where layers have tables of several kinds or switches, which no row can choose from here.
        """
        found = [module for module in model.modules() if _kind(module) is not None]
        kinds = {(str(_kind(module)), _switch(module)) for module in found}
        if len(kinds) != 1:
            return None
        ((kind, switch),) = kinds
        return cls("longrope" if kind == "longrope" else "dynamic", switch, found)

    @contextmanager
    def rows(self, positions: Tensor, lengths: Tensor | None) -> Iterator[None]:
        """Have the rotary embedding turn rows at positions [N] as in texts of these lengths [N] int64.

        Without lengths, a row is the last one of its text.
        """
        wanted = positions + 1 if lengths is None else lengths
        keys = torch.where(wanted > self.switch, wanted, torch.zeros_like(wanted)).cpu()
        if self.kind == "longrope":
            keys = keys.clamp(max=1)
        groups = [(key, (keys == key).nonzero().flatten()) for key in sorted(set(keys.tolist()))]
        kept = [module.__dict__.get("forward") for module, _ in self._modules]
        for module, plain in self._modules:
            module.__dict__["forward"] = partial(self._forward, module, plain, groups)
        try:
            yield
        finally:
            for (module, _), forward in zip(self._modules, kept, strict=True):
                del module.__dict__["forward"]
                if forward is not None:
                    module.__dict__["forward"] = forward

    def _forward(
        self,
        module: Any,
        plain: Callable[..., tuple[Tensor, Tensor]],
        groups: list[tuple[int, Tensor]],
        x: Tensor,
        position_ids: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return cosines and sines [1, N, width] of rows at positions [..., N], each group by its own table."""
        kept = module.inv_freq
        order = torch.cat([rows for _, rows in groups]).argsort().to(position_ids.device, non_blocking=True)
        try:
            parts = []
            for key, rows in groups:
                module.inv_freq = self._frequencies(module, key)
                parts.append(plain(module, x, position_ids[..., rows.to(position_ids.device, non_blocking=True)]))
        finally:
            module.inv_freq = kept
        cos, sin = (torch.cat(both, dim=-2)[..., order, :] for both in zip(*parts, strict=True))
        return cos, sin

    def _frequencies(self, module: Any, key: int) -> Tensor:
        """Return inverse frequencies of a table: 0 for that of short texts, else by transformers' own formula."""
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        device = module.inv_freq.device
        if key == 0:
            return module.original_inv_freq.to(device, non_blocking=True)  # type: ignore[no-any-return] # untyped
        if self.kind == "longrope":
            if id(module) not in self._long:
                self._long[id(module)] = ROPE_INIT_FUNCTIONS["longrope"](module.config, device, self.switch + 1)[0]
            return self._long[id(module)]
        # A tensor, as transformers has it: Python's numbers would be rounded elsewhere.
        length = torch.full((), key, device=device)
        return ROPE_INIT_FUNCTIONS["dynamic"](module.config, device, length)[0]  # type: ignore[no-any-return] # untyped


def _kind(module: Any) -> str | None:
    """Return the type of a module's table if that depends on a length."""
    kind = getattr(module, "rope_type", None)
    if not isinstance(kind, str) or kind not in KINDS:
        return None
    return kind if hasattr(module, "config") and hasattr(module, "original_inv_freq") else None


def _switch(module: Any) -> int:
    """Return the largest length of a module's first table, which transformers takes from one place or another."""
    if _kind(module) == "dynamic":
        return int(getattr(module, "original_max_seq_len", module.config.max_position_embeddings))
    return int(module.config.rope_parameters[SWITCH])


def _plain_forward(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the forward of a module's class without the choice of a table around it."""
    plain: Callable[..., tuple[Tensor, Tensor]] = inspect.unwrap(type(module).forward)
    return plain
