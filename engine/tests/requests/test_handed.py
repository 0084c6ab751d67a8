"""A plugin that writes into what it is handed, or tries to end the process, changes no text of the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from runs import ControllerPlugin, ids_of, params, prompts, run, target

from specdec_core import hookimpl
from specdec_core.draft import Draft, RequestView
from specdec_core.errors import ContractError, PluginCallError
from specdec_core.traits import MethodTraits
from specdec_engine import LLM
from specdec_testing.stubs import Garbage, Stub, stub_plugin

CONFIG = {"method": "stub", "num_speculative_tokens": 4}
ENDS = [SystemExit("bye"), GeneratorExit(), BaseException("odd")]


class Writes(Stub):
    """Writes into the batch, then drafts 600 tokens a row."""

    def __init__(self, write: Callable[[Any], None]) -> None:
        super().__init__()
        self.write = write

    def propose(self, batch: Any) -> Draft:
        self.calls += 1
        self.write(batch)
        return Draft.of([[3] * 600 for _ in batch.requests])


def zero_limit(batch: Any) -> None:
    batch.max_draft[:] = 10_000


def other_limit(batch: Any) -> None:
    object.__setattr__(batch, "max_draft", batch.max_draft + 10_000)


def other_ids(batch: Any) -> None:
    batch.request(0).tokens[:] = 3


def other_request(batch: Any) -> None:
    batch.request(0).max_draft = 10_000


@pytest.mark.parametrize("write", [zero_limit, other_limit, other_ids, other_request])
def test_writing_into_a_batch_fails_and_lifts_no_limit(write: Any) -> None:
    model, texts, sampling = target("llama"), prompts((5, 40)), params(2)
    plain = run(model, texts, sampling)
    with LLM(hf_model=model, speculative_config=CONFIG, plugins={"stub": stub_plugin(Writes(write))}) as llm:
        assert ids_of(llm.generate(texts, sampling)) == ids_of(plain)
        assert llm.get_metrics().failures > 0 and llm.get_metrics().drafted == 0
    with pytest.raises((ContractError, ValueError, AttributeError)):
        run(model, texts, sampling, Writes(write))


class Overwrites(Stub):
    """Uses the states it is shown as scratch space."""

    traits = MethodTraits(rows="all", hidden=True, aux_layers=(0, 1))

    def propose(self, batch: Any) -> Draft:
        self.calls += 1
        batch.rows.hidden.fill_(float("nan"))
        batch.rows.aux.fill_(float("nan"))
        return Draft.of([[3] * int(most) for most in batch.max_draft])


def test_the_states_of_rows_are_the_proposers_own() -> None:
    model, texts = target("llama"), prompts((5, 40))
    sampling = params(2, logprobs=1)
    stub = Overwrites()
    plain, drafted = run(model, texts, sampling), run(model, texts, sampling, stub)
    assert stub.calls > 0 and ids_of(drafted) == ids_of(plain)
    for one, other in zip(plain, drafted, strict=True):
        chosen = [
            [entry[token].logprob for entry, token in zip(r.outputs[0].logprobs, r.outputs[0].token_ids, strict=True)]
            for r in (one, other)
        ]
        assert chosen[1] == pytest.approx(chosen[0], abs=1e-4)


class Ends(Garbage):
    """Raises what would end the process, in one of its calls."""

    def __init__(self, where: str, error: BaseException) -> None:
        super().__init__(128)
        self.where, self.error = where, error

    def _end(self, where: str) -> None:
        if where == self.where:
            raise self.error

    def start(self, request: RequestView) -> None:
        self._end("start")
        super().start(request)

    def propose(self, batch: Any) -> Draft:
        self._end("propose")
        return super().propose(batch)

    def finish(self, request: RequestView, reason: Any) -> None:
        self._end("finish")
        super().finish(request, reason)

    def close(self) -> None:
        self._end("close")

    def memory_bytes(self) -> int:
        self._end("memory_bytes")
        return 0


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["start", "propose", "finish", "close", "memory_bytes"])
def test_a_proposer_cannot_end_the_engine(where: str, error: BaseException) -> None:
    model, texts, sampling = target("llama"), prompts((5, 40)), params(2)
    plain = run(model, texts, sampling)
    assert ids_of(run(model, texts, sampling, Ends(where, error), strict=False)) == ids_of(plain)
    with pytest.raises(PluginCallError, match=rf"method 'stub' raised {type(error).__name__}.* in {where}"):
        run(model, texts, sampling, Ends(where, error))


def test_an_interrupt_in_a_proposer_reaches_the_caller() -> None:
    with pytest.raises(KeyboardInterrupt):
        run(target("llama"), prompts((5,)), params(1), Ends("propose", KeyboardInterrupt()), strict=False)


class EndingVerifier:
    @hookimpl
    def specdec_make_verifier(self) -> Any:
        return self

    def verify(self, draft: Any, logits: Any, noise: Any, target_draws: Any, greedy: Any) -> Any:
        raise SystemExit(3)


def test_a_verifier_cannot_end_the_engine() -> None:
    config, plugins = {"rejection_sample_method": "ending"}, {"ending": EndingVerifier()}
    with pytest.raises(PluginCallError, match="verifier 'ending' raised SystemExit: 3 in verify"):
        run(target("llama"), prompts((5,)), params(1), Garbage(128), config=config, plugins=plugins)


class BadController:
    def __init__(self, where: str, error: BaseException | None) -> None:
        self.where, self.error = where, error

    def limit(self, requests: Any, k: Any) -> Any:
        if self.error is None:
            return ["many"]
        if self.where == "limit":
            raise self.error
        return k

    def observe(self, stats: Any) -> None:
        stats.drafted.clear()
        if self.where == "observe" and self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [*ENDS, ValueError("no"), None], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["limit", "observe"])
def test_a_controller_that_fails_costs_its_wish(
    where: str, error: BaseException | None, caplog: pytest.LogCaptureFixture
) -> None:
    model, texts, sampling = target("llama"), prompts((5, 40)), params(2)
    plain = run(model, texts, sampling)
    arguments = {"config": {"controller": "bad"}, "plugins": {"bad": ControllerPlugin(BadController(where, error))}}
    with caplog.at_level(logging.WARNING, "specdec_engine"):
        assert ids_of(run(model, texts, sampling, Garbage(128), strict=False, **arguments)) == ids_of(plain)
    assert sum("controller 'bad' failed in" in record.message for record in caplog.records) == 1
    ends = error is not None and not isinstance(error, Exception)
    with pytest.raises(PluginCallError if ends else (ValueError, TypeError)):
        run(model, texts, sampling, Garbage(128), **arguments)


class EndingObserver:
    @hookimpl
    def specdec_step_finished(self, step: Any) -> None:
        step.drafted.clear()
        raise GeneratorExit


@pytest.mark.filterwarnings("ignore:.*specdec_step_finished raised GeneratorExit")
def test_an_observer_cannot_end_the_engine() -> None:
    model, texts, sampling = target("llama"), prompts((5, 40)), params(2)
    plain = run(model, texts, sampling)
    arguments = {"config": {"observers": ["ending"]}, "plugins": {"ending": EndingObserver()}}
    assert ids_of(run(model, texts, sampling, Garbage(128), strict=False, **arguments)) == ids_of(plain)
    assert torch.is_grad_enabled()
