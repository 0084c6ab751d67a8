"""What a request may ask for: vLLM's `SamplingParams` and `StructuredOutputsParams`, checked when they are made."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from specdec_core.config.plain_values import plain
from specdec_core.errors import RequestError
from specdec_core.noise import GREEDY_BELOW
from specdec_engine.text.prompt_text import check_text

SEEDS: Final = 2**64  # a seed is the 64-bit key of the noise
_FORMS: Final = ("json", "regex", "choice", "grammar", "json_object")


@dataclass(frozen=True, kw_only=True)
class StructuredOutputsParams:
    """The form that the text must have; exactly one of the first five is given.

    json         a JSON schema, as text or as a mapping
    regex        a regular expression that the whole text matches
    choice       the texts of which one is said
    grammar      a context-free grammar, in GBNF (a kind of EBNF, `root ::= ...`) or Lark (`start: ...`)
    json_object  any JSON object
    disable_any_whitespace         JSON without spaces and line breaks between its parts
    disable_additional_properties  objects for which the schema names keys have no others
    whitespace_pattern             a regular expression for what may stand between the parts of JSON
    start_after                    (not in vLLM) an id, or a text for its ids, after which the form begins; what is
                                   emitted before them, and they themselves, may be anything. None: from the beginning
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    start_after: int | str | None = None

    def __post_init__(self) -> None:
        """Refuse none or several forms, values of another type, and options of JSON for what is none."""
        _make_plain(self)
        if len(self._given) != 1:
            given = ", ".join(self._given) or "none"
            message = f"structured_outputs takes exactly one of {', '.join(_FORMS)}; given: {given}"
            raise RequestError(message)
        _require(self, isinstance(self.json, (str, Mapping, type(None))), "json", "a schema as text or a mapping")
        _require(self, isinstance(self.regex, (str, type(None))), "regex", "text")
        _require(self, isinstance(self.grammar, (str, type(None))), "grammar", "text")
        _require(self, self.choice is None or _texts(self.choice), "choice", "a list of texts that are not empty")
        _require(self, _start(self.start_after), "start_after", "an id, a text that is not empty, or None")
        pattern = self.whitespace_pattern
        _require(self, isinstance(pattern, (str, type(None))), "whitespace_pattern", "a regular expression or None")
        _require(
            self,
            pattern is None or not self.disable_any_whitespace,
            "whitespace_pattern",
            "possible with disable_any_whitespace=True: leave one out",
        )
        for name in ("disable_any_whitespace", "disable_additional_properties"):
            _require(self, isinstance(getattr(self, name), bool), name, "true or false")
        for name in ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"):
            _require(self, not getattr(self, name) or self.kind.startswith("json"), name, f"an option of {self.kind}")

    @property
    def _given(self) -> list[str]:
        return [name for name in _FORMS if getattr(self, name) not in (None, False)]

    @property
    def kind(self) -> str:
        """Which of the five forms is given."""
        return self._given[0]


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Parameters of one request, with vLLM's names and defaults. Each holds at every verified position.

    n                    samples of the prompt; sample i has sequence index i
    presence_penalty, frequency_penalty  taken from the logits of ids in the output, once and per occurrence; -2 .. 2
    repetition_penalty   divisor (multiplier of negative logits) for ids in prompt or output; above 0
    temperature          0 (or below 1e-5) = greedy, else the divisor of the logits
    top_p, top_k, min_p  truncation: top_k 0 or -1 = all ids; min_p is a share of the largest probability
    seed                 key of the request's noise, 0 .. 2^64 - 1; None = derived from the engine's seed and the
                         arrival number
    stop                 texts that end the request where they appear first
    stop_token_ids       ids that end the request besides the end-of-sequence ids; the id is kept in `token_ids`
    ignore_eos           go on after an end-of-sequence id
    max_tokens           the most ids to emit, None for as many as the context allows; 0 only with prompt_logprobs:
                         the prompt is scored and nothing is emitted
    min_tokens           no end-of-sequence id and no stop id or text before that many ids
    logprobs, prompt_logprobs  log-probabilities of that many ids a position besides the chosen one, -1 = of all ids
    detokenize, skip_special_tokens, spaces_between_special_tokens  how ids become text
    logits_processors    called at every position: `f(output ids so far, logits) -> logits`, or an object with
                         `apply(prefix, logits)`; see `specdec_engine.sampling.processors`
    bad_words            texts that are never completed; lists of ids are taken as well
    include_stop_str_in_output  keep the stop text at the end of `text`
    truncate_prompt_tokens  keep that many last ids of the prompt only, -1 = as many as the context allows
    structured_outputs   a `StructuredOutputsParams`
    logit_bias           added to the logits of ids, each clamped to -100 .. 100
    allowed_token_ids    the only ids that may be emitted
    extra_args           {"specdec": {...}}: options of speculation for this request: `off`, `num_speculative_tokens`,
                         and those of the method

    Raises RequestError with the parameter's name, its value and what was expected.
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
    logits_processors: Sequence[Callable[..., Any] | Any] | None = None
    bad_words: Sequence[str | Sequence[int]] | None = None
    include_stop_str_in_output: bool = False
    truncate_prompt_tokens: int | None = None
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    extra_args: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Refuse values that are wrong, alone or together; numpy's scalars and arrays count as Python's values."""
        _make_plain(self)
        for name, (ok, expected) in _RULES.items():
            value = getattr(self, name)
            _require(self, ok(value), name, expected)
        for field in fields(self):
            if isinstance(field.default, bool):
                _require(self, isinstance(getattr(self, field.name), bool), field.name, "true or false")
        _require(
            self,
            self.max_tokens != 0 or self.prompt_logprobs is not None,
            "max_tokens",
            "a whole number of at least 1, or None; 0 needs prompt_logprobs, for then the prompt alone is scored",
        )
        _require(
            self,
            self.max_tokens is None or self.min_tokens <= self.max_tokens,
            "min_tokens",
            f"at most max_tokens={self.max_tokens}",
        )
        for name, texts in (("stop", self.stop_texts), ("bad_words", self.bad_words or ())):
            for text in texts:
                if isinstance(text, str):
                    check_text(text, f"a text of {name}")
        _require(self, self.detokenize or not self.stop_texts, "stop", "possible with detokenize=False: leave one out")

    @property
    def greedy(self) -> bool:
        """Whether rows take the argmax; the one place where this is decided."""
        return self.temperature < GREEDY_BELOW

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """The stop texts, none for None."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


def _make_plain(params: Any) -> None:
    for field in fields(params):
        value = getattr(params, field.name)
        if (given := plain(value)) is not value:
            object.__setattr__(params, field.name, given)


def _require(params: object, ok: bool, name: str, expected: str) -> None:
    if not ok:
        message = f"sampling parameter {name}={getattr(params, name)!r} is not {expected}"
        raise RequestError(message)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object, low: float = -math.inf, high: float = math.inf) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


def _texts(value: object) -> bool:
    return isinstance(value, Sequence) and len(value) > 0 and all(isinstance(t, str) and t for t in value)


def _ids(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(_is_int(i) and i >= 0 for i in value)


def _no_texts(value: object) -> bool:
    return value is None or (isinstance(value, (list, tuple)) and (not value or _texts(value)))


def _stop(value: object) -> bool:
    return _no_texts(value) or (isinstance(value, str) and value != "")


def _start(value: object) -> bool:
    return value is None or (isinstance(value, str) and value != "") or _ids([value])


def _bad_words(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, (list, tuple)) and all(
        (isinstance(word, str) and word != "") or (_ids(word) and len(word) > 0) for word in value
    )


def _count_or_all(value: object) -> bool:
    return value is None or (_is_int(value) and value >= -1)  # type: ignore[operator] # mypy does not follow the check


def _biases(value: object) -> bool:
    return value is None or (
        isinstance(value, Mapping)
        and all(_is_int(i) and i >= 0 and _number(b) and math.isfinite(b) for i, b in value.items())
    )


def _processors(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, (list, tuple)) and all(callable(p) or callable(getattr(p, "apply", None)) for p in value)


_Rule = tuple[Callable[[Any], bool], str]
_RULES: Final[dict[str, _Rule]] = {
    "n": (lambda v: _is_int(v) and v >= 1, "a whole number of at least 1"),
    "presence_penalty": (lambda v: _number(v, -2, 2), "a number in -2 .. 2"),
    "frequency_penalty": (lambda v: _number(v, -2, 2), "a number in -2 .. 2"),
    "repetition_penalty": (lambda v: _number(v, 0) and 0 < v < math.inf, "a number above 0"),
    "temperature": (lambda v: _number(v, 0) and v < math.inf, "a finite number of at least 0"),
    "top_p": (lambda v: _number(v, 0, 1) and v > 0, "a number above 0 and at most 1"),
    "top_k": (lambda v: _is_int(v) and v >= -1, "a whole number of at least 1, or 0 or -1 for all ids"),
    "min_p": (lambda v: _number(v, 0, 1), "a number in 0 .. 1"),
    "seed": (
        lambda v: v is None or (_is_int(v) and 0 <= v < SEEDS),
        "a whole number in 0 .. 2^64 - 1, or None for a request without a seed (which vLLM writes as -1, too)",
    ),
    "stop": (_stop, "a text or a list of texts, none of them empty"),
    "stop_token_ids": (lambda v: v is None or _ids(v), "a list of ids"),
    "max_tokens": (
        lambda v: v is None or (_is_int(v) and v >= 0),
        "a whole number of at least 1, or None (0 with prompt_logprobs, to score the prompt alone)",
    ),
    "min_tokens": (lambda v: _is_int(v) and v >= 0, "a whole number of at least 0"),
    "logprobs": (_count_or_all, "a whole number of at least 0, -1 for all ids, or None"),
    "prompt_logprobs": (_count_or_all, "a whole number of at least 0, -1 for all ids, or None"),
    "logits_processors": (_processors, "a list of callables or of objects with apply(prefix, logits)"),
    "bad_words": (_bad_words, "a list of texts or lists of ids, none of them empty"),
    "truncate_prompt_tokens": (
        lambda v: v is None or (_is_int(v) and (v >= 1 or v == -1)),
        "a whole number of at least 1, -1, or None",
    ),
    "structured_outputs": (
        lambda v: v is None or isinstance(v, StructuredOutputsParams),
        "a StructuredOutputsParams or None",
    ),
    "logit_bias": (_biases, "a mapping from ids to finite numbers"),
    "allowed_token_ids": (lambda v: v is None or (_ids(v) and len(v) > 0), "a list of at least one id"),
    "extra_args": (lambda v: v is None or isinstance(v, Mapping), "a mapping"),
}
