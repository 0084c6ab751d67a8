"""What a row of the table of families can say, and how it is matched against a config.json; knows no family."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Config = Mapping[str, Any]
Again = Literal["no", "type", "pair"]

TEXT: Final = "text"


@dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """One family of models with multi-token-prediction (MTP) modules.

    title          its models, for people

    Which config.json is of the family: one of these four must fit, or `again`, and `where`:

    types          values of `model_type`
    contains       text in `model_type`
    architectures  values of the first of `architectures`
    among          value of any of `architectures`
    where          what must hold besides
    again          whether a config.json that was converted already is converted anew: "no", by its new "type", or by
                   the "pair" of type and architecture, where several families share a type

    What it becomes:

    becomes        the new `model_type`, None: as it was
    architecture   the new one, None: as it was
    counts         where the number of modules is, in order of preference: dotted keys; the part `text` means
                   text_config, or the config itself where there is none. () where the files do not say it
    numbered       what the names of module i's tensors have in them, with {i}: where no key is there, they are counted
    default        the number where none of these keys is there
    required       whether a missing number, or one below 1, is an error
    promotes       text_config takes the place of the config around it; what it lacks is kept
    sets           further keys, the same for all checkpoints
    also           further keys, computed from the config (after promotion) and the number of modules

    What drafts for it:

    why_not        why nothing here does, a sentence; "" where something does
    unfit          what in a config.json, text_config promoted, is not built here, a sentence; None where all is
    vllm_drafts    vLLM does, by the method mtp
    modules        what is in module i of a model with L layers, as parts of tensors' names: {i}, {layer} = L + i
    whole          the checkpoint is nothing but the drafter
    recursive      its one module was trained to run on its own output: k is what the file proposes, not a number of
                   modules
    reads          the target's state that goes in: "final", after its last norm, or "residual", before it; or "keys":
                   the final one of the last row, and the target's own keys and values (`assistant`)
    loads_as       keys under which transformers can load a target whose type it does not know; None takes one out
    """

    title: str
    types: tuple[str, ...] = ()
    contains: str = ""
    architectures: tuple[str, ...] = ()
    among: str = ""
    where: Callable[[Config], bool] | None = None
    again: Again = "no"
    becomes: str | None = None
    architecture: str | None = None
    counts: tuple[str, ...] = ()
    numbered: str = ""
    default: int | None = None
    required: bool = False
    promotes: bool = False
    sets: Config = field(default_factory=dict)
    also: Callable[[Config, int | None], Config] | None = None
    why_not: str = ""
    unfit: Callable[[Config], str | None] | None = None
    vllm_drafts: bool = True
    modules: tuple[str, ...] = ()
    whole: bool = False
    recursive: bool = False
    reads: Literal["final", "residual", "keys"] = "final"
    loads_as: Config = field(default_factory=dict)

    def matches(self, config: Config) -> bool:
        """Return whether a config.json is of the family."""
        kind, names = model_type(config), architectures(config)
        first = names[0] if names else ""
        is_kin = {"no": False, "type": True, "pair": first == self.architecture}[self.again]
        converted = is_kin and kind == self.becomes
        named = kind in self.types or first in self.architectures or (self.among and self.among in names)
        contained = bool(self.contains) and self.contains in kind
        return bool(converted or named or contained) and (self.where is None or self.where(config))

    def count(self, config: Config) -> tuple[Any, str]:
        """Return the number of modules as the file has it, None if it has none; and where that is from."""
        for path in self.counts:
            value = look_up(config, path)
            if value is not None:
                return value, path.removeprefix(f"{TEXT}.")
        return self.default, "the family's default" if self.counts else "the family's only number"

    def counted(self, names: Iterable[str]) -> tuple[int | None, str]:
        """Return how many modules tensors of these names are of, None if of none; and how that is known."""
        before, _, after = self.numbered.partition("{i}")
        numbers = {f".{name}".partition(f".{before}")[2].partition(f"{after}.")[0] for name in names}
        whole = {number for number in numbers if number.isdecimal()}
        return len(whole) or None, f"the number of {self.numbered} in its tensors"


def model_type(config: Config) -> str:
    """Return `model_type`, "" for a config without one."""
    kind = config.get("model_type")
    return kind if isinstance(kind, str) else ""


def architectures(config: Config) -> tuple[str, ...]:
    """Return `architectures`, () for a config without them."""
    names = config.get("architectures")
    return tuple(str(name) for name in names) if isinstance(names, list | tuple) else ()


def text_of(config: Config) -> Config:
    """Return the config of the language model: text_config, or the config itself."""
    text = config.get("text_config")
    return text if isinstance(text, Mapping) else config


def look_up(config: Config, path: str) -> Any:
    """Return what is at a dotted path, None if nothing is; the part `text` is explained at `Family.counts`."""
    found: Any = config
    for part in path.split("."):
        if not isinstance(found, Mapping):
            return None
        found = text_of(found) if part == TEXT else found.get(part)
    return found


def is_count(value: Any) -> bool:
    """Return whether a value can be a number of modules."""
    return type(value) is int and value >= 1
