"""Off means off: without a speculative configuration nothing of speculation is built, asked, or recorded."""

from __future__ import annotations

from typing import Any

from runs import ids_of, params, prompts, target

from specdec_core import hookimpl, hookspecs
from specdec_engine import LLM
from specdec_testing.recording import RecordingProposer
from specdec_testing.stubs import Stub, stub_plugin

HOOKS = [name for name in dir(hookspecs) if hasattr(getattr(hookspecs, name), "specdec_spec")]


def noting(stub: Stub, heard: list[str]) -> Any:
    """The stub's plugin, which notes each of its hooks that is called."""
    plugin = stub_plugin(stub)

    class Noting(type(plugin)):  # type: ignore[misc]  # the class of a stub's plugin is the kit's own
        def __getattribute__(self, name: str) -> Any:
            if name in HOOKS:
                heard.append(name)
            return super().__getattribute__(name)

        @hookimpl
        def specdec_step_finished(self, step: Any) -> None:
            heard.append("a step")

    plugin.__class__ = Noting
    return plugin


def decode(config: dict[str, Any] | None) -> tuple[list[list[list[int]]], LLM, list[str], Stub, list[Any]]:
    """Text, engine, hooks that were asked for, proposer, and the output of every forward."""
    heard: list[str] = []
    outs: list[Any] = []
    stub = RecordingProposer("all", hidden=True, aux_layers=(1,))
    plugins = {"stub": noting(stub, heard)}
    with LLM(hf_model=target("llama"), speculative_config=config, plugins=plugins, strict=True) as llm:
        forward = llm._engine.target.forward

        def recorded(works: Any, drafts: Any = None) -> Any:
            outs.append(forward(works, drafts))
            return outs[-1]

        llm._engine.target.forward = recorded  # type: ignore[method-assign]  # looked at, not replaced
        text = ids_of(llm.generate(prompts((9, 40, 1)), params(3)))
    return text, llm, heard, stub, outs


def test_without_a_configuration_there_is_no_proposer_no_hook_and_no_recorded_row() -> None:
    text, llm, heard, stub, outs = decode(None)
    assert (llm.resolved_config, llm._engine.runner, llm._engine.reports) == (None, None, None)
    assert llm._engine.registry.loaded == ()
    assert heard == []
    assert not stub.started and not stub.finished
    assert outs and all(out.hidden is None and out.aux is None for out in outs)
    # The same things happen where speculation is on, so that this test would see them.
    with_drafts, _, heard, stub, outs = decode({"method": "stub", "num_speculative_tokens": 4})
    assert with_drafts == text
    assert {"specdec_make_proposer", "specdec_method_traits", "a step"} <= set(heard)
    assert stub.started and stub.finished
    assert all(out.hidden is not None and out.aux is not None for out in outs)
