"""What a checkpoint has of MTP modules: family, number, sizes, which of them are there; no torch, no weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specdec_core.config.tensor_files import TensorEntry
from specdec_core.errors import ConfigError, TargetError
from specdec_core.sources import DraftSource, TargetInfo
from specdec_nn.checkpoints.reader import fits, written
from specdec_nn.checkpoints.speculators import proposed_tokens
from specdec_plugin_mtp import speculators
from specdec_plugin_mtp.family import Config, Family, architectures, is_count, model_type
from specdec_plugin_mtp.overriding import family_of, promoted, unwrapped, view_of
from specdec_plugin_mtp.shapes import quantised, shape_for


@dataclass(frozen=True)
class Reading:
    """One checkpoint, by its own config.json and not by what the method made of it.

    family    None: of no family with MTP modules
    config    the keys of the family, text_config promoted where the family asks for it
    source    the checkpoint, unpatched
    """

    family: Family | None
    config: Config
    source: DraftSource

    @classmethod
    def of(cls, draft: DraftSource) -> Reading:
        """Read a checkpoint; raises ConfigError if its config.json cannot be read."""
        source = draft.original
        family = family_of(source.hf_config)
        return cls(family, unwrapped(source.hf_config) if family is None else view_of(family, source.hf_config), source)

    @property
    def said(self) -> tuple[Any, str]:
        """What stands where the number of modules should, None if nothing does; and where that is."""
        if self.family is None:
            return None, ""
        number, where = self.family.count(self.config)
        if number is None and self.family.numbered:
            return self.family.counted(self._names)
        return number, where

    @property
    def n_predict(self) -> int | None:
        """The number of modules, None where config.json has none that can be."""
        number = self.said[0]
        return number if is_count(number) else None

    @property
    def text(self) -> Config:
        """The keys of the language model, text_config promoted."""
        return promoted(self.config)

    @property
    def _names(self) -> tuple[str, ...]:
        """The names of all tensors, () where they cannot be read: `lacks` raises for that."""
        try:
            return tuple(self.source.tensor_names)
        except ConfigError:
            return ()

    @property
    def num_layers(self) -> int | None:
        """The model's own layers, of which the modules' names count on."""
        return self._sizes.get("num_layers")

    def lacks(self, module: int) -> tuple[str, ...]:
        """Return parts of names that no tensor has, of those that module `module` (from 0) must have.

        Raises ConfigError if names cannot be read, or if config.json has no number of layers.
        """
        names = [f".{name}." for name in self.source.tensor_names]
        return tuple(part for part in self._parts(module) if not any(f".{part}." in name for name in names))

    def _parts(self, module: int) -> list[str]:
        wanted = () if self.family is None else self.family.modules
        layer = None
        if any("{layer}" in name for name in wanted):
            if self.num_layers is None:
                message = f"config.json of {self.source.model!r} has no number of layers"
                raise ConfigError(message)
            layer = self.num_layers + module
        return [name.format(i=module, layer=layer) for name in wanted]

    def misfits(self, module: int, target: TargetInfo) -> tuple[str, ...]:
        """Return in words which tensors of a module are of another width than the target's states.

        Raises ConfigError if they cannot be read, as `quantised` does.
        """
        shapes = {name: entry.shape for name, entry in self._tensors(module).items()}
        found = {name: shape_for(name, target.hidden_size) for name in sorted(shapes)}
        wrong = (name for name, shape in found.items() if shape is not None and not fits(shapes[name], shape))
        return tuple(f"{name} is {list(shapes[name])}, expected {written(found[name] or ())}" for name in wrong)

    def quantised(self, module: int) -> str | None:
        """Return why the weights of a module cannot be read here, None if they can."""
        return quantised({name: entry.dtype for name, entry in sorted(self._tensors(module).items())})

    def _tensors(self, module: int) -> dict[str, TensorEntry]:
        around = tuple(dict.fromkeys(f".{part.rpartition('.')[0]}." for part in self._parts(module)))
        names = {name for name in self.source.tensor_names if any(part in f".{name}" for part in around)}
        return self.source.entries(names)

    def differs(self, target: TargetInfo) -> tuple[str, ...]:
        """Return the sizes that are not the target's, each with both figures."""
        words = {"hidden_size": "hidden size", "vocab_size": "vocabulary", "num_layers": "layers"}
        if self.family is not None and self.family.whole:
            del words["num_layers"]  # a file of its own need not say how many the target has
        own = self._sizes
        unlike = [name for name in words if name in own and own[name] != getattr(target, name)]
        return tuple(f"{words[name]} {own[name]}, the target's {getattr(target, name)}" for name in unlike)

    @property
    def proposed(self) -> int | None:
        """How many tokens a file of its own asks to be drafted, None if it gives none."""
        return proposed_tokens(self.source.hf_config)

    def described(self) -> str:
        """Return what the checkpoint is by its config.json."""
        config = self.source.hf_config
        if speculators.is_speculators(config):
            return f"{speculators.described(config)}, a layer of {model_type(self.config)!r}"
        return f"model_type {model_type(config)!r}, architectures {list(architectures(config))}"

    @property
    def _sizes(self) -> dict[str, int]:
        """The sizes of the language model in a checkpoint; nothing where its config.json lacks one."""
        own = self.source.hf_config
        try:
            config = self.config if speculators.is_speculators(own) else own
            info = TargetInfo.from_config(self.source.model, config, max_model_len=1)
        except TargetError:
            return {}
        return {"hidden_size": info.hidden_size, "vocab_size": info.vocab_size, "num_layers": info.num_layers}
