"""A prompt's `cache_salt` keeps it apart from others in the memories of drafters, too, or is refused."""

from __future__ import annotations

from typing import Any

import pytest
from runs import params, prompts, target

from specdec_core.errors import RequestError
from specdec_core.traits import MethodTraits
from specdec_engine import LLM
from specdec_testing.stubs import Null, stub_plugin

NGRAM = {"method": "ngram", "num_speculative_tokens": 2}
SUFFIX = {"method": "suffix", "num_speculative_tokens": 4}
METHODS = {
    "suffix": SUFFIX,
    "combine": {"method": "combine", "methods": [SUFFIX, NGRAM]},
}
(PROMPT,) = prompts((40,))


class Remembering(Null):
    """Tells that it remembers requests."""

    traits = MethodTraits(remembers=True)

    def memory_digest(self) -> bytes:
        return b""


def engine(config: Any, **llm: Any) -> LLM:
    return LLM(hf_model=target("llama"), speculative_config={**config, "cut_by_cost": False}, strict=True, **llm)


def ask(llm: LLM, salt: str | None, **extra: Any) -> Any:
    sampling = params(1, max_tokens=30, extra_args={"specdec": extra} if extra else None)
    return llm.generate(PROMPT if salt is None else {**PROMPT, "cache_salt": salt}, sampling)[0].metrics


@pytest.mark.parametrize("name", list(METHODS))
def test_what_a_method_remembers_is_shared_by_equal_salts_only(name: str) -> None:
    with engine(METHODS[name]) as llm:
        first, again = ask(llm, "a"), ask(llm, "a")
        assert again.accepted > first.accepted
        for salt in ("b", None):
            assert ask(llm, salt) == first
        assert ask(llm, "c", namespace="mine") == first and ask(llm, "d", namespace="mine") == first
        assert ask(llm, "c", namespace="mine").accepted > first.accepted


def test_a_method_that_remembers_without_namespaces_refuses_a_salt_and_says_what_to_do() -> None:
    plugin = stub_plugin(Remembering())
    with engine({"method": "stub", "num_speculative_tokens": 2}, plugins={"stub": plugin}) as llm:
        with pytest.raises(RequestError, match="'stub' remembers the texts of all requests and has no namespaces"):
            ask(llm, "a")
        assert ask(llm, "a", off=True).drafted == 0
