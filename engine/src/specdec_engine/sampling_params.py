"""What a request may ask for: vLLM's `SamplingParams`, of which some fields work and the others are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from specdec.errors import RequestError

# Fields that exist in vLLM and that this engine does not act on yet; any value but the default is refused.
_REFUSED: tuple[str, ...] = (
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "top_p",
    "top_k",
    "min_p",
    "stop",
    "min_tokens",
    "logprobs",
    "prompt_logprobs",
    "logits_processors",
    "bad_words",
    "include_stop_str_in_output",
    "truncate_prompt_tokens",
    "structured_outputs",
    "logit_bias",
    "allowed_token_ids",
)
# vLLM's bound: dividing by less than this overflows, and the law is a point mass long before.
GREEDY_BELOW: Final = 1e-5
# Other spellings of "off".
_OFF: dict[str, tuple[Any, ...]] = {"top_k": (-1,)}


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Parameters of one request, with vLLM's names and defaults.

    n               samples of the prompt; sample i has sequence index i
    temperature     0 (or below 1e-5) = greedy, else the divisor of the logits
    seed            key of the request's noise; None = derived from the engine's seed and the request's arrival number
    max_tokens      the most ids to emit, None for as many as the context allows
    stop_token_ids  ids that end the request besides the end-of-sequence ids; the id itself is kept in `token_ids`
    ignore_eos      go on after an end-of-sequence id
    skip_special_tokens, detokenize, spaces_between_special_tokens  how ids become text
    extra_args      {"specdec": {...}}: request options of the method in use

    The remaining fields are vLLM's; any value but the default raises `RequestError` with the field's name.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logits_processors: Sequence[Callable[..., Any]] | None = None
    bad_words: Sequence[str] | None = None
    include_stop_str_in_output: bool = False
    truncate_prompt_tokens: int | None = None
    structured_outputs: Any = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    extra_args: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Refuse values that are wrong or that nothing here acts on."""
        refused = [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in fields(self)
            if f.name in _REFUSED and getattr(self, f.name) not in (f.default, *_OFF.get(f.name, ([], (), {})))
        ]
        if refused:
            message = f"sampling parameters {', '.join(refused)} are not implemented by this engine; leave them out"
            raise RequestError(message)
        self._require(_is_int(self.n) and self.n >= 1, "n", "a whole number of at least 1")
        self._require(_is_number(self.temperature) and self.temperature >= 0, "temperature", "a number of at least 0")
        self._require(self.temperature < float("inf"), "temperature", "a finite number")
        self._require(self.seed is None or _is_int(self.seed), "seed", "a whole number or None")
        self._require(
            self.max_tokens is None or (_is_int(self.max_tokens) and self.max_tokens >= 1),
            "max_tokens",
            "a whole number of at least 1, or None",
        )
        ids = self.stop_token_ids
        self._require(
            ids is None or all(_is_int(i) for i in ids),
            "stop_token_ids",
            "a list of ids",
        )

    def _require(self, ok: bool, name: str, expected: str) -> None:
        if not ok:
            message = f"sampling parameter {name}={getattr(self, name)!r} is not {expected}"
            raise RequestError(message)

    @property
    def greedy(self) -> bool:
        """Whether rows take the argmax; the one place where this is decided."""
        return self.temperature < GREEDY_BELOW


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value
