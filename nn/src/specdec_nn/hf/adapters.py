"""One LoRA adapter of the package peft, added to the weights of a loaded model; knows no engine and no requests.

Merging (LoRA, arXiv 2106.09685, section 4.1) leaves plain weights, so what reads weights later reads the adapted ones.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from specdec_core.errors import TargetError
from specdec_nn.hf.loading import first_line

ADAPTER: Final = "adapter_config.json"
LISTED: Final = 4
NAME: Final = "default"  # of the one adapter, within peft


@dataclass(frozen=True)
class Adapter:
    """An adapter whose configuration was read and can be merged.

    name    as the caller gave it
    place   a local folder or a hub id
    config  peft's configuration
    """

    name: str
    place: str
    config: Any

    @classmethod
    def of(cls, name: str) -> Adapter:
        """Read an adapter's configuration from a folder or a hub id.

        Raises TargetError if peft is not installed, if there is no adapter, or if it is none that can be merged.
        """
        if importlib.util.find_spec("peft") is None:
            message = f"lora={name!r} needs the package peft: pip install 'specdec-engine[lora]'"
            raise TargetError(message)
        from peft import PeftConfig

        path = Path(name).expanduser()
        local = path.exists() or name.startswith((".", "/", "~"))
        if local and not (path / ADAPTER).is_file():
            message = f"lora={name!r}: the folder has no {ADAPTER}; expected what save_pretrained of peft wrote"
            raise TargetError(message)
        place = str(path) if local else name
        try:
            config = PeftConfig.from_pretrained(place, trust_remote_code=False)  # JSON alone
        except Exception as error:  # readers of the Hub and of JSON, each with errors of its own
            message = f"lora={name!r}: its {ADAPTER} cannot be read: {first_line(error)}"
            raise TargetError(message) from error
        adapter = cls(name, place, config)
        problem = adapter._problem()
        if problem is not None:
            message = f"lora={name!r} {problem}"
            raise TargetError(message)
        return adapter

    def _problem(self) -> str | None:
        """Return why the adapter cannot be merged into a causal language model, None if it can."""
        kind, task = (getattr(self.config, key, None) for key in ("peft_type", "task_type"))
        kind, task = (getattr(value, "value", value) for value in (kind, task))
        if kind != "LORA":
            return f"is an adapter of type {kind}, and only LORA is merged here; merge it with peft"
        if task not in (None, "CAUSAL_LM"):
            return f"was trained for the task {task}; expected CAUSAL_LM"
        if getattr(self.config, "alora_invocation_tokens", None):
            return "begins at certain ids (alora_invocation_tokens), so it is no part of the weights"
        return None

    def merged_into(self, model: nn.Module) -> nn.Module:
        """Return the model with the adapter added to its weights, in place.

        Raises TargetError where the adapter does not fit the model, in whole or in part.
        """
        from peft import PeftModel

        if getattr(model, "hf_quantizer", None) is not None or getattr(model, "is_quantized", False):
            message = f"lora={self.name!r} cannot be merged into quantised weights; load the model without quantisation"
            raise TargetError(message)
        device = next(model.parameters()).device
        self._check_tables(model)
        try:
            with torch.random.fork_rng(devices=[]):  # peft draws weights before it reads them
                wrapped = PeftModel(model, self.config, adapter_name=NAME)
            read = wrapped.load_adapter(self.place, adapter_name=NAME, torch_device=str(device))
            self._check_names(read)
            merged: nn.Module = wrapped.merge_and_unload()
        except TargetError:
            raise
        except Exception as error:  # whatever peft finds wrong
            message = f"lora={self.name!r} does not fit the model: {first_line(error)}"
            raise TargetError(message) from error
        return merged.eval().requires_grad_(False)

    def _check_tables(self, model: nn.Module) -> None:
        """Refuse what would change both tables of a model that has one for embedding and head."""
        head, embedding = (getattr(model, f"get_{side}_embeddings")() for side in ("output", "input"))
        if head is None or head.weight is not embedding.weight:
            return
        names = {id(module): name for name, module in model.named_modules()}
        wanted = self.config.target_modules
        for table in (head, embedding):
            name = names[id(table)]
            if isinstance(wanted, (set, list, tuple)) and any(name == w or name.endswith(f".{w}") for w in wanted):
                message = (
                    f"lora={self.name!r} changes {name}, and this model has one table for embedding and head, so that "
                    f"merging would change both; untie them, merge with peft, and give the result"
                )
                raise TargetError(message)

    def _check_names(self, read: Any) -> None:
        """Refuse an adapter of which tensors are missing, or left over."""
        for found, what in ((read.missing_keys, "lacks"), (read.unexpected_keys, "has no place in the model for")):
            if found:
                more = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
                message = f"lora={self.name!r} {what} {len(found)} of its tensors: {', '.join(sorted(found)[:LISTED])}"
                raise TargetError(message + more + "; is it for this model?")
