"""A closed engine holds nothing: weights, packed weights, arena and drafter go, whoever still holds the engine."""

from __future__ import annotations

import gc
import logging
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import params, prompts
from torch import nn

from specdec_core.errors import RequestError
from specdec_core.traits import MethodTraits
from specdec_engine import LLM
from specdec_testing.stubs import Null, stub_plugin
from specdec_testing.targets import tiny_target

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("target")
    tiny_target("llama").save_pretrained(place)
    return place


def config_of(method: str, folder: Path) -> dict[str, Any] | None:
    drafting = {"method": "draft_model", "model": str(folder), "num_speculative_tokens": 2}
    return {"none": None, "ngram": NGRAM, "draft_model": drafting}[method]


def held_by(llm: LLM) -> dict[str, weakref.ref[Any]]:
    """Return references to what must go: what an engine that has run holds."""
    target = llm._engine.target
    forward = target.flat.binding._linears[0][0], target.flat.binding._linears[0][1]
    packed = next(cell.cell_contents for cell in forward[1].__closure__ if hasattr(cell.cell_contents, "form"))
    things = {
        "model": target.model,
        "weight": next(target.model.parameters()),
        "arena": target.arena,
        "pages": target.arena.layer(0, *[torch.empty(1, *target.arena._layers[0][0].shape[1::2])] * 2)[0],
        "packed weight": packed,
        "its weight": packed.form.weight,
    }
    if llm._engine.runner is not None:
        things["proposer"] = llm._engine.runner._proposer
    return {name: weakref.ref(thing) for name, thing in things.items()}


def alive(held: dict[str, weakref.ref[Any]]) -> list[str]:
    gc.collect()
    return [name for name, reference in held.items() if reference() is not None]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["none", "ngram", "draft_model"])
def test_all_goes_after_generate_though_the_engine_is_held(folder: Path, method: str) -> None:
    llm = LLM(folder, config_of(method, folder), max_model_len=128)
    llm.generate(prompts((9,)), params(1))
    held = held_by(llm)
    assert alive(held) == list(held)
    llm.close()
    assert alive(held) == []
    assert llm.closed and llm.kv_cache_tokens == 0 and llm.get_state().kv_bytes == 0
    with pytest.raises(RequestError, match="closed"):
        _ = llm.model


def test_all_goes_though_a_stream_was_left_midway_and_is_held(folder: Path) -> None:
    llm = LLM(folder, NGRAM, max_model_len=128)
    stream = llm.stream(prompts((9,)), params(1))
    next(stream)
    held = held_by(llm)
    llm.close()
    assert alive(held) == []
    (last,) = stream
    assert (last.finished, last.outputs[0].finish_reason) == (True, "abort")


def test_all_goes_after_a_step_that_raised(folder: Path) -> None:
    llm = LLM(folder, NGRAM, max_model_len=128)
    llm.generate(prompts((9,)), params(1))
    held = held_by(llm)

    def fail(module: nn.Module, args: Any) -> None:
        raise RuntimeError("the model fails")

    hook = llm.model.get_input_embeddings().register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="the model fails"):
        llm.generate(prompts((9,)), params(1))
    llm.close()
    del hook
    assert alive(held) == []


def test_a_callers_model_stays_and_its_arena_and_packed_weights_go() -> None:
    model, ids = tiny_target("llama"), torch.tensor([[5, 6, 7]])
    before, marks = model(ids).logits, [set(vars(module)) for module in model.modules()]
    llm = LLM(hf_model=model, speculative_config=NGRAM, max_model_len=128)
    llm.generate(prompts((9,)), params(1))
    held = held_by(llm)
    llm.close()
    assert alive(held) == ["model", "weight"]
    assert torch.equal(model(ids).logits, before)
    assert [set(vars(module)) for module in model.modules()] == marks
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


def test_a_build_that_fails_late_leaves_no_hook_and_no_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    from specdec_engine import build as module

    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("a late part fails")

    stub = Null()
    stub.traits = MethodTraits(rows="all", hidden=True)
    model = tiny_target("llama")
    monkeypatch.setattr(module, "EngineStats", fail)
    config, plugins = {"method": "stub", "num_speculative_tokens": 2}, {"stub": stub_plugin(stub)}
    with pytest.raises(RuntimeError, match="a late part"):
        LLM(hf_model=model, speculative_config=config, plugins=plugins, max_model_len=64)
    assert stub.closed == 1
    assert all(not part._forward_hooks and not part._forward_pre_hooks for part in model.modules())


@pytest.mark.slow
def test_many_engines_leave_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "specdec_engine")  # pytest would keep every line that is logged
    caplog.set_level(logging.ERROR, "specdec_engine.memory.kv_plan")
    model = tiny_target("llama")

    def open_and_close(times: int) -> int:
        for _ in range(times):
            with LLM(hf_model=model, speculative_config=NGRAM, max_model_len=64) as llm:
                llm.generate([1, 2, 3], params(1, max_tokens=2)[0], use_tqdm=False)
        gc.collect()
        return len(gc.get_objects())

    open_and_close(3)
    first = open_and_close(1)
    assert open_and_close(30) - first < 30, "fewer than one object an engine"
