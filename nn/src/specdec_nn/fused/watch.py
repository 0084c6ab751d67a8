"""Notices what happened to a decoder's modules since they were read: adapters, hooks, exchanged forwards."""

from __future__ import annotations

import logging
from itertools import repeat
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module

logger = logging.getLogger("specdec_nn.fused")


class Watch:
    """The parts of a decoder as they were; asked before every pass, so that it costs microseconds."""

    def __init__(self, decoder: nn.Module) -> None:
        """Remember every module below the decoder, with its place."""
        places: list[tuple[str, dict[str, Any], str, Any]] = [
            (f"{path}.{name}".lstrip("."), parent._modules, name, child)
            for path, parent in decoder.named_modules()
            for name, child in parent._modules.items()
            if child is not None
        ]
        self._paths = [path for path, _, _, _ in places]
        self._parents: list[dict[str, Any]] = [parent for _, parent, _, _ in places]
        self._names = [name for _, _, name, _ in places]
        self._children: list[nn.Module] = [child for _, _, _, child in places]
        self._attributes = [child.__dict__ for child in self._children]
        self._hooks: list[dict[Any, Any]] = [torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks]
        self._hooks += [hooks for child in self._children for hooks in (child._forward_hooks, child._forward_pre_hooks)]
        self._told = False

    def untouched(self) -> bool:
        """Return whether the modules are as they were; log the first that is not, once."""
        same = list(map(dict.get, self._parents, self._names)) == self._children
        if same and not any(self._hooks) and not any(map(dict.__contains__, self._attributes, repeat("forward"))):
            return True
        if not self._told:
            self._told = True
            logger.warning("the model runs through its modules, slower than before: %s", self._reason())
        return False

    def _reason(self) -> str:
        parts = zip(self._paths, self._parents, self._names, self._children, strict=True)
        for path, parent, name, child in parts:
            now = parent.get(name)
            if now is not child:
                return f"{path} was a {type(child).__name__} and is now a {type(now).__name__}"
            if child._forward_hooks or child._forward_pre_hooks:
                return f"{path} ({type(child).__name__}) has a hook"
            if "forward" in child.__dict__:
                return f"{path} ({type(child).__name__}) has a forward of its own"
        return "there are hooks on all modules"
