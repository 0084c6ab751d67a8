"""The speculative configuration: as a user writes it, with vLLM's keys, and as `specdec.resolve` settles it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from specdec.config_input import load_mapping, spell_keys
from specdec.errors import ConfigError
from specdec.options import MethodOptions, RequestOptions, request_options, validate
from specdec.sources import DraftSource, Problem
from specdec.traits import MethodTraits

if TYPE_CHECKING:
    from specdec.catalog import Record
    from specdec.loader import LoadedPlugin

__all__ = [
    "COUPLED",
    "STANDARD",
    "Decision",
    "MethodOptions",
    "RequestOptions",
    "ResolvedConfig",
    "SpeculativeConfig",
    "config_error",
    "request_options",
]

COUPLED: Final = "coupled"  # the default verifier where drafts can equal the target's own draws
STANDARD: Final = "standard"  # the default verifier of drafts drawn independently
OTHER: Final = "other_keys"

Count = Annotated[int, Field(strict=True, ge=1)]
BatchRange = tuple[int, int, int]


class SpeculativeConfig(BaseModel):
    """What a user asks for: the common keys, and everything else untouched in `other_keys`.

    Keys are those of vLLM's `--speculative-config`; dashes in them count as underscores. Keys that are not common
    belong to the method, the verifier or the controller, and are validated by `specdec.resolve`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: str | None = Field(
        default=None, min_length=1, description="Name of the method; may be left out if `model` tells it."
    )
    model: str | None = Field(
        default=None,
        min_length=1,
        description="Draft checkpoint: a folder, a file or a hub id; or the name of a method.",
    )
    num_speculative_tokens: Count | None = Field(
        default=None, description="The most tokens drafted for a request in a step."
    )
    max_model_len: Count | None = Field(default=None, description="No draft stands at this position or beyond.")
    rejection_sample_method: str | None = Field(default=None, min_length=1, description="Name of the verifier.")
    draft_sample_method: Literal["greedy", "probabilistic"] | None = Field(
        default=None, description="Whether drafts are the drafter's most likely tokens, or are drawn from its law."
    )
    num_speculative_tokens_per_batch_size: tuple[BatchRange, ...] | None = Field(
        default=None,
        description="Ranges [start, end, K] of batch sizes (inclusive) with the most tokens drafted for each.",
    )
    disable_by_batch_size: Annotated[int, Field(strict=True, ge=2)] | None = Field(
        default=None, description="No drafting while more requests than this are running."
    )
    max_step_tokens: Count | None = Field(
        default=None, description="The most tokens drafted in one step over all requests."
    )
    controller: str | None = Field(
        default=None, min_length=1, description="Name of the extension that chooses how many tokens to draft."
    )
    observers: tuple[str, ...] = Field(default=(), description="Names of extensions that are told what happens.")
    kernels: tuple[str, ...] = Field(default=(), description="Further distributions whose kernels may be used.")
    other_keys: Mapping[str, Any] = Field(
        default_factory=dict, description="Keys of the method, the verifier and the controller, as given."
    )

    @model_validator(mode="before")
    @classmethod
    def _collect(cls, values: Any) -> Any:
        """Put keys that are not common into `other_keys`."""
        if not isinstance(values, Mapping):
            return values
        spelled = spell_keys(values)
        common = {key: value for key, value in spelled.items() if key in COMMON_KEYS}
        other = {key: value for key, value in spelled.items() if key not in COMMON_KEYS and key != OTHER}
        return {**common, OTHER: {**(spelled.get(OTHER) or {}), **other}}

    @field_validator("num_speculative_tokens_per_batch_size", mode="before")
    @classmethod
    def _check_ranges(cls, value: Any) -> Any:
        """Check and sort the ranges: whole numbers, no overlap, the smallest start 1."""
        return None if value is None else _sorted_ranges(value)

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
        return {**common, **self.other_keys}


COMMON_KEYS: Final = tuple(key for key in SpeculativeConfig.model_fields if key != OTHER)


@dataclass(frozen=True)
class Decision:
    """One thing that was settled, and why: what `specdec explain` prints."""

    key: str
    value: Any
    reason: str


@dataclass(frozen=True, kw_only=True)
class ResolvedConfig:
    """A speculative configuration of which every part is settled.

    method                  name of the method
    record, plugin          where it comes from; what was loaded
    config                  the configuration, defaults of the method filled in
    options                 the method's own keys
    traits                  what the method needs and gives
    draft                   its checkpoint, None if it has none of its own
    num_speculative_tokens  k
    max_model_len           drafts stand below this position; None where the configuration sets no limit of its own
    verifier...             name, record, plugin, own keys; `verifier_lossy`: it changes the target's law
    controller...           name, plugin, own keys; None without a controller
    observers               extensions that are told what happens
    decisions               what was settled, in order, with reasons
    """

    method: str
    record: Record
    plugin: LoadedPlugin
    config: SpeculativeConfig
    options: MethodOptions
    traits: MethodTraits
    draft: DraftSource | None
    num_speculative_tokens: int
    max_model_len: int | None
    verifier: str
    verifier_record: Record
    verifier_plugin: LoadedPlugin
    verifier_options: MethodOptions
    verifier_lossy: bool
    controller: str | None = None
    controller_plugin: LoadedPlugin | None = None
    controller_options: MethodOptions | None = None
    observers: tuple[LoadedPlugin, ...] = ()
    decisions: tuple[Decision, ...] = ()

    @cached_property
    def lossless(self) -> bool:
        """Whether the output law is the target's."""
        return not self.verifier_lossy

    def as_json(self) -> dict[str, Any]:
        """Return plain data for people, logs and observers."""
        controller = None
        if self.controller_plugin is not None and self.controller_options is not None:
            controller = _part_json(self.controller_plugin.record, self.controller_options)
        return {
            "method": self.method,
            "distribution": self.record.distribution,
            "version": self.record.version,
            "num_speculative_tokens": self.num_speculative_tokens,
            "max_model_len": self.max_model_len,
            "draft": None if self.draft is None else self.draft.model,
            "options": self.options.model_dump(mode="json"),
            "traits": asdict(self.traits),
            "verifier": {**_part_json(self.verifier_record, self.verifier_options), "lossy": self.verifier_lossy},
            "controller": controller,
            "observers": [plugin.name for plugin in self.observers],
            "config": self.config.as_json(),
            "decisions": [asdict(decision) for decision in self.decisions],
        }


def config_error(problems: Sequence[Problem]) -> ConfigError:
    """Return one error that lists all problems."""
    return ConfigError(f"speculative_config cannot be used: {'; '.join(map(str, problems))}", problems)


def _part_json(record: Record, options: MethodOptions) -> dict[str, Any]:
    return {
        "name": record.name,
        "distribution": record.distribution,
        "version": record.version,
        "options": options.model_dump(mode="json"),
    }


def _sorted_ranges(value: Any) -> tuple[BatchRange, ...]:
    """Return the ranges sorted by start; raises ValueError saying which range is wrong and how."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        message = "expected a list of [start, end, K]"
        raise ValueError(message)
    ranges = sorted(_range(entry) for entry in value)
    if ranges[0][0] != 1:
        message = f"the smallest start must be 1, and it is {ranges[0][0]}"
        raise ValueError(message)
    for (start, end, _), (following, *_) in itertools.pairwise(ranges):
        if following <= end:
            message = f"the range {start}..{end} overlaps the one that starts at {following}"
            raise ValueError(message)
    return tuple(ranges)


def _range(entry: Any) -> BatchRange:
    whole = isinstance(entry, Sequence) and len(entry) == 3 and all(type(number) is int for number in entry)
    if not whole or not 1 <= entry[0] <= entry[1] or entry[2] < 0:
        message = f"expected [start, end, K], whole numbers with 1 <= start <= end and K >= 0; one range is {entry!r}"
        raise ValueError(message)
    return entry[0], entry[1], entry[2]
