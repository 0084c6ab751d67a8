"""What is known of a draft checkpoint and of a target before loading; torch only for names inside `.bin` and `.pt`."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from specdec_core.config import checkpoint, gguf_file, tensor_files
from specdec_core.config.read_only import read_only
from specdec_core.errors import ConfigError, TargetError
from specdec_core.errors import Problem as Problem

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CONFIG: Final = "config.json"
JSON_FILES: Final = ("*.json",)
TEXT_CONFIGS: Final = ("text_config", "llm_config", "language_config", "thinker_config")
VOCAB_SIZE: Final = ("vocab_size", "n_vocab", "padded_vocab_size")
HIDDEN_SIZE: Final = ("hidden_size", "n_embd", "d_model", "dim", "model_dim")
NUM_LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
MAX_POSITIONS: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "n_ctx",
)


@dataclass(frozen=True, kw_only=True)
class Detection:
    """A plugin's claim that a draft source is one of its methods.

    method    the method's name
    strength  "certain" (the checkpoint names it), "likely" (its tensors fit) or "possible" (nothing speaks against it)
    evidence  config.json keys and tensor names that show it, for people to read
    """

    method: str
    strength: Literal["possible", "likely", "certain"]
    evidence: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Default:
    """A value for a key that the user left out, and why it is this one."""

    key: str
    value: Any
    reason: str


@dataclass(frozen=True, kw_only=True)
class Note:
    """How a check read something that could be read in several ways; `explain` shows it among the decisions."""

    key: str
    value: Any
    reason: str


@dataclass(frozen=True, kw_only=True)
class TargetSwap:
    """The pair that a draft checkpoint stands for: the target to load, and the speculative configuration."""

    model: str
    speculative_config: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, kw_only=True)
class TargetInfo:
    """What is known of the target without loading it.

    model              name or folder, None for a model that came as an object
    hf_config          its config.json as plain data, which cannot be changed
    vocab_size         rows of the embedding, padding included
    hidden_size        width of the hidden state
    num_layers         number of decoder layers
    max_model_len      the most positions a request may take
    tensor_parallel_size  the host's, 1 for the reference engine
    extra              what a host notes besides; "tokenizer": which one it takes, where not that beside the weights
    revision           branch, tag or commit of a hub id in `model`; None for its main branch
    """

    model: str | None
    hf_config: Mapping[str, Any]
    vocab_size: int
    hidden_size: int
    num_layers: int
    max_model_len: int
    tensor_parallel_size: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict)
    revision: str | None = None

    def __post_init__(self) -> None:
        """Take copies that nobody can change: every plugin is handed this object."""
        for name in ("hf_config", "extra"):
            object.__setattr__(self, name, read_only(getattr(self, name)))

    @classmethod
    def from_config(
        cls,
        model: str | None,
        hf_config: Mapping[str, Any],
        max_model_len: int | None = None,
        tensor_parallel_size: int = 1,
    ) -> TargetInfo:
        """Read a target's config.json, under whatever names its family uses and nested or not.

        `max_model_len` is the host's limit; None means that of the config. Raises TargetError naming every figure
        that is missing and the keys that were looked for.
        """
        config = language_config(hf_config)
        figures = {
            "vocabulary size": (VOCAB_SIZE, None),
            "hidden size": (HIDDEN_SIZE, None),
            "number of layers": (NUM_LAYERS, None),
            "longest context": (MAX_POSITIONS, max_model_len),
        }
        values = {name: given or _figure(config, keys) for name, (keys, given) in figures.items()}
        missing = [f"{name} ({' or '.join(figures[name][0])})" for name, value in values.items() if value is None]
        if missing:
            message = (
                f"the config of {model or 'the target'} is not one of a language model: no {'; no '.join(missing)}"
            )
            raise TargetError(message)
        vocab_size, hidden_size, num_layers, positions = (value or 0 for value in values.values())
        return cls(
            model=model,
            hf_config=hf_config,
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            max_model_len=positions,
            tensor_parallel_size=tensor_parallel_size,
        )

    @classmethod
    def from_folder(cls, model: str | PathLike[str], max_model_len: int | None = None) -> TargetInfo:
        """Read `config.json` of a folder or of a hub id.

        Raises TargetError if there is none that can be read, and for a `max_model_len` above its own.
        """
        try:
            config = DraftSource(model).hf_config
        except ConfigError as error:
            message = f"target {fspath(model)!r} cannot be used: {error}"
            raise TargetError(message) from error
        if not config:
            message = f"target {fspath(model)!r} cannot be used: it has no {CONFIG}"
            raise TargetError(message)
        own = _figure(language_config(config), MAX_POSITIONS)
        if max_model_len is not None and own is not None and max_model_len > own:
            message = f"max_model_len={max_model_len} is above the model's own limit of {own} positions"
            raise TargetError(message)
        return cls.from_config(fspath(model), config, max_model_len)


class DraftSource:
    """A checkpoint on disk, read lazily and without building any model: its config.json and its tensors' names.

    Nothing is read, nor fetched, before an attribute is asked for. All attributes raise ConfigError, naming the file,
    for what cannot be read.

    model     the folder, weight file or hub id, as it was given; files are read from `path`, where they are
    revision  branch, tag or commit of a hub id; None for its main branch, and always None for a local path
    """

    def __init__(
        self,
        model: str | PathLike[str],
        patch: Mapping[str, Any] | None = None,
        revision: str | None = None,
    ) -> None:
        """Name the source; `patch` replaces top-level keys of its config.json."""
        self.model: Final = fspath(model)
        is_local = revision is not None and Path(self.model).expanduser().exists()
        self.revision: Final = None if is_local else revision
        self._patch: Final = read_only(patch or {})

    def __repr__(self) -> str:
        """Name the source."""
        return f"DraftSource({self.model!r})"

    def patched(self, patch: Mapping[str, Any]) -> DraftSource:
        """Return the same source with top-level keys of its config.json replaced; this one stays as it is."""
        return DraftSource(self.model, {**self._patch, **patch}, self.revision)

    def as_json(self) -> dict[str, Any]:
        """Return the arguments that name the same source again, as plain data."""
        return {"model": self.model, "patch": copy.deepcopy(self._patch), "revision": self.revision}

    @cached_property
    def original(self) -> DraftSource:
        """The same source with its config.json as it is in the checkpoint."""
        return DraftSource(self.model, revision=self.revision) if self._patch else self

    @cached_property
    def path(self) -> Path:
        """The local folder or file; a hub id is fetched first, unless it is a local path."""
        return checkpoint.locate(self.model, revision=self.revision)

    @cached_property
    def hf_config(self) -> Mapping[str, Any]:
        """Its config.json as plain data, which cannot be changed; empty for weights that come without one."""
        # Of a hub id no weights yet: the config may be all that is needed.
        place = checkpoint.locate(self.model, JSON_FILES, self.revision)
        file = (place if place.is_dir() else place.parent) / CONFIG
        adapter = checkpoint.adapter_problem(place)
        if adapter is not None:
            raise ConfigError(f"{self.model!r} {adapter}")
        if place.is_file() and place.suffix == gguf_file.ENDING:
            config = gguf_file.read_config(place)
        elif file.is_file():
            config = checkpoint.read_json_object(file)
        elif self.weight_files:
            config = {}
        else:
            message = f"{self.model!r} has neither {CONFIG} nor weights (.safetensors, .bin, .pt)"
            raise ConfigError(message)
        found: Mapping[str, Any] = read_only({**config, **self._patch})
        return found

    @property
    def architectures(self) -> tuple[str, ...]:
        """The config's `architectures`, empty if it has none."""
        names = self.hf_config.get("architectures")
        return tuple(str(name) for name in names) if isinstance(names, Sequence) and not isinstance(names, str) else ()

    @property
    def max_model_len(self) -> int | None:
        """The longest context that its config names, under whatever name its family uses; None if it names none."""
        return _figure(language_config(self.hf_config), MAX_POSITIONS)

    @cached_property
    def weight_files(self) -> tuple[Path, ...]:
        """Files that hold tensors: the safetensors of a folder, or else its `.bin` and `.pt`; sorted."""
        return tuple(checkpoint.weight_files(self.path))

    @cached_property
    def tensor_names(self) -> frozenset[str]:
        """Names of all tensors; from JSON alone, but for `.bin` and `.pt` without an index, which need torch."""
        return checkpoint.tensor_names(self.path, self.weight_files)

    @cached_property
    def tensor_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of each tensor, by name; from JSON headers, or with torch for `.bin` and `.pt`."""
        return MappingProxyType({name: entry.shape for name, entry in self._tensors.items()})

    @cached_property
    def tensor_dtypes(self) -> Mapping[str, str]:
        """Dtype of each tensor, by name, as torch calls it: "bfloat16"; "" in formats with dtypes of their own."""
        return MappingProxyType({name: entry.dtype for name, entry in self._tensors.items()})

    def entries(self, names: Collection[str]) -> dict[str, tensor_files.TensorEntry]:
        """Return shape and dtype of some tensors; files in which the index sees none of them are not opened."""
        places = checkpoint.weight_map(self.path)
        wanted = None if places is None else {places.get(name) for name in names}
        files = [file for file in self.weight_files if wanted is None or file.name in wanted]
        return {name: entry for name, entry in tensor_files.entries(files).items() if name in names}

    def integers(self, name: str) -> list[int]:
        """Return the values of a small tensor of whole numbers, such as a map of ids, flat; raises ConfigError."""
        return tensor_files.integers(name, self._tensors[name])

    @cached_property
    def _tensors(self) -> dict[str, tensor_files.TensorEntry]:
        return tensor_files.entries(self.weight_files)


def language_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of the language model inside a config: nested keys win over those around them."""
    for key in TEXT_CONFIGS:
        inner = config.get(key)
        if isinstance(inner, Mapping):
            return language_config({**{k: v for k, v in config.items() if k != key}, **inner})
    return config


def _figure(config: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    """Return the first positive whole number under one of the keys."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


class TargetHandle(Protocol):
    """The loaded target, as far as a proposer may use it."""

    @property
    def info(self) -> TargetInfo:
        """What was known before loading, with the host's limits filled in."""

    @property
    def device(self) -> torch.device:
        """Device of the target's inputs."""

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the target's hidden states."""

    @property
    def tokenizer(self) -> Any | None:
        """The tokenizer that the host uses with the target, as transformers has it; None if it has none."""

    @property
    def max_num_seqs(self) -> int:
        """The most requests that run at one time."""

    @property
    def kv_cache_tokens(self) -> int:
        """Positions that all running requests may hold together; what a drafter's own cache is sized by."""

    @property
    def embedding_weight(self) -> Tensor:
        """The input embedding's own rows [V, H], without what a family does to them afterwards; not to be written."""

    def embed(self, ids: Tensor) -> Tensor:
        """Return the input embeddings [n, H] of ids [n], as the target's first layer gets them."""

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return logits [n, V] of final hidden states [n, H], with the family's softcap and logit scale."""

    def new_arena(self, num_tokens: int) -> Any:
        """Return a KV arena of `specdec_nn` for a drafter, for that many tokens."""
