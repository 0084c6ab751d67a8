"""The speculative configuration.

As a user writes it, with vLLM's keys, and as `specdec_core.config.resolve` leaves it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import to_jsonable_python

from specdec_core.config.batch_ranges import BatchRange, read_ranges
from specdec_core.config.fingerprint import fingerprint
from specdec_core.config.options import (
    OPTIONS_HOOKS,
    MethodOptions,
    RequestOptions,
    SharingRequestOptions,
    options_model,
    validate,
)
from specdec_core.config.parse import load_mapping, spell_keys
from specdec_core.config.read_only import ReadOnlyDict, read_only
from specdec_core.errors import ConfigError
from specdec_core.registry.catalog import Record
from specdec_core.registry.groups import Kind
from specdec_core.registry.loaded import Plugins
from specdec_core.sources import DraftSource, Problem
from specdec_core.traits import MethodTraits

__all__ = [
    "COUPLED",
    "STANDARD",
    "Decision",
    "MethodOptions",
    "RequestOptions",
    "ResolvedConfig",
    "SharingRequestOptions",
    "SpeculativeConfig",
    "config_error",
]

COUPLED: Final = "coupled"  # the default verifier where drafts can equal the target's own draws
STANDARD: Final = "standard"  # the default verifier of drafts drawn independently
OTHER: Final = "other_keys"

_PLAIN: Final = (
    "num_speculative_tokens",
    "max_model_len",
    "draft_tensor_parallel_size",
    "num_lookahead_slots",
    "extra_slots",
    "emits_host_draws",
)

Count = Annotated[int, Field(strict=True, ge=1)]
Name = Annotated[str, Field(min_length=1)]


class SpeculativeConfig(BaseModel):
    """What a user asks for: the common keys, and everything else untouched in `other_keys`.

    Keys are those of vLLM's `--speculative-config`; dashes in them count as underscores. What each common key means is
    said in `specdec_core.config.key_table`. Other keys belong to the method, the verifier or the controller, or are old
    names; they stay as they were given until `specdec_core.config.resolve` reads them. None and null count as left
    out.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Name | None = None
    model: Name | None = None
    revision: Name | None = None
    num_speculative_tokens: Count | None = None
    max_model_len: Count | None = None
    draft_tensor_parallel_size: Count | None = None
    rejection_sample_method: Name | None = None
    draft_sample_method: Literal["greedy", "probabilistic"] | None = None
    num_speculative_tokens_per_batch_size: tuple[BatchRange, ...] | None = None
    disable_by_batch_size: Annotated[int, Field(strict=True, ge=2)] | None = None
    max_step_tokens: Count | None = None
    controller: Name | None = None
    cut_by_cost: Annotated[bool, Field(strict=True)] | None = None
    observers: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    other_keys: Annotated[Mapping[str, Any], AfterValidator(read_only)] = Field(default_factory=ReadOnlyDict)

    @model_validator(mode="before")
    @classmethod
    def _collect(cls, values: Any) -> Any:
        """Put keys that are not common into `other_keys`."""
        if not isinstance(values, Mapping):
            return values
        spelled = spell_keys(values)
        common = {key: value for key, value in spelled.items() if key in COMMON_KEYS and value is not None}
        other = {key: value for key, value in spelled.items() if key not in COMMON_KEYS and key != OTHER}
        return {**common, OTHER: {**(spelled.get(OTHER) or {}), **other}}

    @field_validator("num_speculative_tokens_per_batch_size", mode="before")
    @classmethod
    def _check_ranges(cls, value: Any) -> Any:
        """Check and sort the ranges: whole numbers, no overlap, the smallest start 1."""
        return None if value is None else read_ranges(value)

    @classmethod
    def parse(cls, value: Any) -> SpeculativeConfig:
        """Read a mapping, a JSON string, `@file.json`, `@file.yaml` or an instance.

        Raises ConfigError for what cannot be read or does not fit; it lists every common key that is wrong.
        """
        config, problems = cls.read(value)
        if problems:
            raise config_error(problems)
        return config

    @classmethod
    def read(cls, value: Any) -> tuple[SpeculativeConfig, list[Problem]]:
        """Read like `parse`, but return the problems beside what is right; raises ConfigError for unreadable text."""
        if isinstance(value, cls):
            return value, []
        keys = spell_keys(load_mapping(value))
        config, problems = validate(cls, keys)
        if config is not None:
            return config, []
        wrong = {problem.key.partition(".")[0] for problem in problems}
        rest, more = validate(cls, {key: value for key, value in keys.items() if key not in wrong})
        return (rest or cls()), problems + more

    def as_json(self) -> dict[str, Any]:
        """Return what the user wrote, common keys first, as plain data."""
        common = self.model_dump(mode="json", exclude={OTHER}, exclude_defaults=True)
        return {**common, **copy.deepcopy(self.other_keys)}


COMMON_KEYS: Final = tuple(key for key in SpeculativeConfig.model_fields if key != OTHER)


@dataclass(frozen=True)
class Decision:
    """One thing that was decided, and why: what `specdec explain` prints."""

    key: str
    value: Any
    reason: str


@dataclass(frozen=True, kw_only=True, eq=False)
class ResolvedConfig:
    """A speculative configuration of which every part is decided. Data: JSON in, JSON out, equal and hashable by it.

    Loaded plugins are beside it, in the registry: `registry.plugin(record)`.

    method                  name of the method
    record                  where it comes from
    config                  the configuration, old names replaced and defaults of the method filled in
    options                 the method's own keys
    traits                  what the method needs and gives
    draft                   its checkpoint, None if it has none of its own
    num_speculative_tokens  k
    max_model_len           drafts stand below this position; at most the target's own limit
    draft_tensor_parallel_size  over how many devices the drafter is spread: 1, or as many as the target
    num_lookahead_slots     positions beyond the newest id that a host with one cache for both keeps free for the
                            drafter of a request (vLLM's num_lookahead_tokens)
    extra_slots             input rows that drafting adds for each request to those that the target committed
    verifier...             name, record, own keys; `verifier_lossy`: it changes the target's distribution;
                            `emits_host_draws`: what it emits is the host's own draws, whatever the drafts
    controller...           name, record, own keys; None without a controller
    observers               records of the extensions that are told what happens
    host_keys               keys that the host told `resolve` it acts on, as they were given
    drafter_problems        why the plugin's own drafter cannot be made, where the host told `resolve` that it may have
                            the method by itself
    decisions               what was decided, in order, with reasons
    parts                   the methods that this one is made of, resolved for the same target
    """

    method: str
    record: Record
    config: SpeculativeConfig
    options: MethodOptions
    traits: MethodTraits
    draft: DraftSource | None
    num_speculative_tokens: int
    max_model_len: int
    draft_tensor_parallel_size: int
    num_lookahead_slots: int
    extra_slots: int
    verifier: str
    verifier_record: Record
    verifier_options: MethodOptions
    verifier_lossy: bool
    emits_host_draws: bool = False
    controller: str | None = None
    controller_record: Record | None = None
    controller_options: MethodOptions | None = None
    observers: tuple[Record, ...] = ()
    host_keys: Mapping[str, Any] = field(default_factory=dict)
    drafter_problems: tuple[Problem, ...] = ()
    decisions: tuple[Decision, ...] = ()
    parts: tuple[ResolvedConfig, ...] = ()

    @cached_property
    def lossless(self) -> bool:
        """Whether the output distribution is the target's."""
        return not self.verifier_lossy

    def compute_hash(self) -> str:
        """Return a text that changes with everything that shapes the forwards of target and drafter.

        It is the same in every process, whatever the order of keys, so it can name a cache of compiled graphs. What
        enters: the method, its distribution and version; k, `max_model_len`, `draft_tensor_parallel_size`,
        `num_lookahead_slots`, `extra_slots`; the method's options; all traits; `draft_sample_method`; `kernels`; the
        keys that the host acts on; the draft's config.json as the method reads it. What does not: weights and where
        they lie, verifier, controller, observers, and limits that only make drafts shorter, as these run between
        forwards.
        """
        return fingerprint(
            {
                "method": [self.method, self.record.distribution, self.record.version],
                "sizes": [self.num_speculative_tokens, self.max_model_len, self.draft_tensor_parallel_size],
                "slots": [self.num_lookahead_slots, self.extra_slots],
                "options": self.options.model_dump(),
                "traits": asdict(self.traits),
                "draft_sample_method": self.config.draft_sample_method,
                "kernels": sorted(self.config.kernels),
                "host_keys": self.host_keys,
                "draft": None if self.draft is None else self.draft.hf_config,
                "parts": [part.compute_hash() for part in self.parts],
            }
        )

    @property
    def drafts(self) -> tuple[DraftSource, ...]:
        """The draft checkpoints of the method and of its parts."""
        own = () if self.draft is None else (self.draft,)
        return (*own, *(draft for part in self.parts for draft in part.drafts))

    def __eq__(self, other: object) -> bool:
        """Compare as JSON."""
        return self._text == other._text if isinstance(other, ResolvedConfig) else NotImplemented

    def __hash__(self) -> int:
        """Return a hash of the JSON; unlike `compute_hash`, of all of it and for this process."""
        return hash(self._text)

    @cached_property
    def _text(self) -> str:
        return json.dumps(self.as_json(), sort_keys=True)

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain JSON data, which `from_json` reads; for people, logs, observers, other processes.

        `hash` is added for those who look: `compute_hash()`.
        """
        source = {"model": None, "revision": None} if self.draft is None else self.draft.as_json()
        controller = None
        if self.controller_record is not None and self.controller_options is not None:
            controller = _part_json(self.controller_record, self.controller_options)
        data = {
            "method": self.method,
            **{key: getattr(self.record, key) for key in ("distribution", "version", "value")},
            **{key: getattr(self, key) for key in _PLAIN},
            "draft": source["model"],
            "revision": source["revision"],
            "draft_patch": source.get("patch"),
            "options": self.options.model_dump(mode="json"),
            "traits": asdict(self.traits),
            "verifier": {**_part_json(self.verifier_record, self.verifier_options), "lossy": self.verifier_lossy},
            "controller": controller,
            "observers": [_part_json(record) for record in self.observers],
            "host_keys": dict(self.host_keys),
            "config": self.config.as_json(),
            "hash": self.compute_hash(),
            "drafter_problems": [asdict(problem) for problem in self.drafter_problems],
            "decisions": [asdict(decision) for decision in self.decisions],
            "parts": [part.as_json() for part in self.parts],
        }
        plain: dict[str, Any] = to_jsonable_python(data, serialize_unknown=True)
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any], registry: Plugins) -> ResolvedConfig:
        """Return what `as_json` wrote, in this process or another one; nothing is decided again.

        The registry gives the options models, so the plugins are loaded. Raises PluginError for one that fails or is
        not there, ConfigError for options that the installed plugin does not read.
        """
        record = _record("proposer", {**data, "name": data["method"]})
        source = {"model": data["draft"], "patch": data["draft_patch"], "revision": data["revision"]}
        verifier = _record("verifier", data["verifier"])
        controller = None if data["controller"] is None else _record("extension", data["controller"])
        return cls(
            **{key: data[key] for key in ("method", *_PLAIN)},
            record=record,
            config=SpeculativeConfig.parse(data["config"]),
            options=_read_options(registry, record, data["options"]),
            traits=MethodTraits(**{**data["traits"], "aux_layers": tuple(data["traits"]["aux_layers"])}),
            draft=None if source["model"] is None else DraftSource(**source),
            verifier=verifier.name,
            verifier_record=verifier,
            verifier_options=_read_options(registry, verifier, data["verifier"]["options"]),
            verifier_lossy=data["verifier"]["lossy"],
            controller=None if controller is None else controller.name,
            controller_record=controller,
            controller_options=None
            if controller is None
            else _read_options(registry, controller, data["controller"]["options"]),
            observers=tuple(_record("extension", part) for part in data["observers"]),
            host_keys=data["host_keys"],
            drafter_problems=tuple(Problem(**problem) for problem in data["drafter_problems"]),
            decisions=tuple(Decision(**decision) for decision in data["decisions"]),
            parts=tuple(cls.from_json(part, registry) for part in data["parts"]),
        )


def config_error(problems: Sequence[Problem]) -> ConfigError:
    """Return one error that lists all problems."""
    return ConfigError(f"speculative_config cannot be used: {'; '.join(map(str, problems))}", problems)


def _part_json(record: Record, options: MethodOptions | None = None) -> dict[str, Any]:
    part = {key: getattr(record, key) for key in ("name", "distribution", "version", "value")}
    return part if options is None else {**part, "options": options.model_dump(mode="json")}


def _record(kind: Kind, part: Mapping[str, Any]) -> Record:
    return Record(kind, part["name"], part["value"], part["distribution"], part["version"])


def _read_options(registry: Plugins, record: Record, values: Mapping[str, Any]) -> MethodOptions:
    options, problems = validate(options_model(registry, registry.plugin(record), OPTIONS_HOOKS[record.kind]), values)
    if options is None:
        raise config_error(problems)
    return options
