"""From a request's structured outputs to a grammar in use: each distinct form is compiled once; knows no logits."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final

from specdec_core.errors import RequestError
from specdec_engine.sampling.grammar_state import GrammarState
from specdec_engine.sampling_params import SamplingParams, StructuredOutputsParams

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

COMPILED: Final = 64  # grammars kept for later requests, those used last
# Where only one text is possible, llguidance would allow one way only to cut it into ids.
_EVERY_SPELLING: Final = '%llguidance {"no_forcing": true}'
# Where a schema holds other schemas: under names of its own choice, in lists, or one.
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions")
_LISTED: Final = ("anyOf", "oneOf", "prefixItems")
_SINGLE: Final = ("items", "additionalProperties")

logger = logging.getLogger("specdec_engine")


class Grammars:
    """Compiles forms for the tokenizer of one engine, and starts a matcher for each sample.

    llguidance reads JSON schemas, regular expressions and grammars, and refuses what it cannot honour.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        """Take the tokenizer (None if there is none), the width of the logits, and the ids that end every text."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos = frozenset(token for token in eos_token_ids if token < vocab_size)
        self._compile = lru_cache(COMPILED)(self._compile_new)

    def start(self, params: SamplingParams) -> GrammarState | None:
        """Return the grammar of one sample at its beginning, None if the text may have any form.

        Raises RequestError naming `structured_outputs` and the reason for what cannot be honoured.
        """
        form = params.structured_outputs
        if form is None:
            return None
        try:
            prototype = self._compile(_source(form))
            return self._state(prototype, self._ends(params), self._start_after(form))
        except (ValueError, TypeError, ImportError) as error:
            message = f"structured_outputs.{form.kind} cannot be used: {error}"
            raise RequestError(message) from error

    @cached_property
    def _reader(self) -> LLTokenizer:
        """The vocabulary as llguidance reads it; half a second for 50,000 ids, so on first use only."""
        if self._tokenizer is None:
            message = "it needs the text of each id, and this engine has no tokenizer; pass tokenizer= to LLM"
            raise ValueError(message)
        try:
            from llguidance.hf import from_tokenizer
        except ImportError as error:
            message = "it needs the package llguidance: pip install 'specdec-engine[structured]'"
            raise ImportError(message) from error
        try:
            size = max(self._vocab_size, max(self._tokenizer.get_vocab().values()) + 1)
            # Which ids end a text is settled for each request, so any will do for a model that names none.
            ends = sorted(self._eos) or list(self._tokenizer.all_special_ids[:1]) or [0]
            return from_tokenizer(self._tokenizer, size, ends)
        except Exception as error:  # of readers of many formats, and of tokenizers that are no such thing
            message = f"llguidance cannot read the tokenizer: {error}"
            raise ValueError(message) from error

    def _state(self, prototype: LLMatcher, ends: Collection[int], start: tuple[int, ...]) -> GrammarState:
        words = -(-self._reader.vocab_size // 32)
        return GrammarState(prototype, self._reader.eos_tokens, words, ends, start)

    def _compile_new(self, source: str) -> LLMatcher:
        from llguidance import LLMatcher

        matcher = LLMatcher(self._reader, source, log_level=0)
        if matcher.is_error():
            lines = [line[:200] for line in matcher.get_error().strip().splitlines() if _EVERY_SPELLING not in line]
            raise ValueError("\n".join(lines))
        for warning in matcher.get_grammar_warnings():
            logger.warning("structured_outputs: %s", warning)
        if not self._state(matcher, (), ()).alive:
            message = "no text that this tokenizer can write has this form"
            raise ValueError(message)
        return matcher

    def _ends(self, params: SamplingParams) -> frozenset[int]:
        """Return the ids with which the request may end: a stop id that is text is text in the form, too."""
        eos = frozenset() if params.ignore_eos else self._eos
        ends = eos | {i for i in params.stop_token_ids or () if self._reader.is_special_token(i)}
        if not ends:
            message = (
                "no id could end the text; ignore_eos=True needs a special id in stop_token_ids, and so does a model "
                "without an end-of-sequence id"
            )
            raise ValueError(message)
        return ends

    def _start_after(self, form: StructuredOutputsParams) -> tuple[int, ...]:
        if form.start_after is None:
            return ()
        if isinstance(form.start_after, int):
            ids = [form.start_after]
        else:
            ids = self._tokenizer.encode(form.start_after, add_special_tokens=False)
        if not ids or max(ids) >= self._vocab_size:
            message = f"start_after={form.start_after!r} is no id below {self._vocab_size} and no text made of such ids"
            raise ValueError(message)
        return tuple(ids)


def _source(form: StructuredOutputsParams) -> str:
    """Return the form as a grammar in Lark, llguidance's notation. Raises ValueError or TypeError with the reason."""
    try:
        from llguidance import grammar_from
    except ImportError as error:
        message = "it needs the package llguidance: pip install 'specdec-engine[structured]'"
        raise ImportError(message) from error
    if form.regex is not None:
        rules = json.loads(grammar_from("regex", form.regex))["grammars"][0]["lark_grammar"]
    elif form.choice is not None:
        rules = grammar_from("choice", json.dumps(list(form.choice)))
    elif form.grammar is not None:
        rules = grammar_from("grammar", form.grammar)
    else:
        rules = f"start: %json {json.dumps(_schema(form))}"
    return f"{rules}\n{_EVERY_SPELLING}\n"


def _schema(form: StructuredOutputsParams) -> Any:
    """Return the JSON schema with the form's options in it."""
    schema: Any = {"type": "object"} if form.json is None else form.json
    schema = json.loads(schema) if isinstance(schema, str) else schema
    if form.disable_additional_properties:
        schema = _closed(schema)
    options: dict[str, Any] = {}
    if form.disable_any_whitespace:
        options["whitespace_flexible"] = False
    if form.whitespace_pattern is not None:
        options["whitespace_pattern"] = form.whitespace_pattern
    schema = {} if schema is True else schema
    if not options or not isinstance(schema, Mapping):  # what is neither is refused by the compiler
        return schema
    return {**schema, "x-guidance": {**schema.get("x-guidance", {}), **options}}


def _closed(schema: Any) -> Any:
    """Return a schema whose objects have no keys but those that it names, wherever it names some and says no more."""
    if not isinstance(schema, Mapping):
        return schema
    if "allOf" in schema:
        message = (
            "disable_additional_properties cannot be combined with allOf; write additionalProperties where you mean it"
        )
        raise ValueError(message)
    closed = dict(schema)
    for key in _NAMED:
        if isinstance(closed.get(key), Mapping):
            closed[key] = {name: _closed(inner) for name, inner in closed[key].items()}
    for key in _LISTED:
        if isinstance(closed.get(key), list):
            closed[key] = [_closed(inner) for inner in closed[key]]
    for key in _SINGLE:
        if key in closed:
            closed[key] = _closed(closed[key])
    if "properties" in closed or "patternProperties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed
