"""An engine with an EAGLE head leaves nothing behind: no setting is changed, and head and caches go when it closes."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import torch
from layouts import LAYOUTS, three

from specdec_core.errors import SpecdecError
from specdec_engine import LLM, SamplingParams
from specdec_testing.settings import unchanged
from specdec_testing.targets import tiny_target

SAMPLING = SamplingParams(temperature=0.7, seed=3, max_tokens=8, ignore_eos=True)


def config(folder: Path, method: str) -> dict[str, Any]:
    layout = three(0, aux=3) if method == "eagle3" else LAYOUTS["eagle-fc-bias"]
    draft = checkpoints.save(folder / method, layout.tensors, layout.settings)
    keys: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]} if method == "eagle3" else {}
    return {"method": method, "model": draft, "num_speculative_tokens": 2, **keys}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_settings_are_as_they_were(tmp_path: Path, method: str) -> None:
    model, given = tiny_target("llama"), config(tmp_path, method)
    with LLM(hf_model=model, speculative_config=given) as llm:  # imports what it needs
        llm.generate([5, 6, 7], SAMPLING, use_tqdm=False)
    with unchanged(), LLM(hf_model=model, speculative_config=given) as llm:
        assert llm.generate([5, 6, 7], SAMPLING, use_tqdm=False)[0].metrics.drafted
        next(llm.stream([5, 6, 7], SAMPLING))
    with unchanged(), pytest.raises(SpecdecError):
        LLM(hf_model=tiny_target("llama", hidden_size=64), speculative_config=given)


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_head_and_caches_go_when_the_engine_closes(tmp_path: Path, method: str) -> None:
    model = tiny_target("llama")
    llm = LLM(hf_model=model, speculative_config=config(tmp_path, method))
    llm.generate([5, 6, 7], SAMPLING, use_tqdm=False)
    assert llm._engine.runner is not None
    proposer: Any = llm._engine.runner._proposer
    pages = proposer._cache.arena._layers[0][0]
    held = {"proposer": weakref.ref(proposer), "pages": weakref.ref(pages)}
    del proposer, pages
    llm.close()
    gc.collect()
    assert [name for name, reference in held.items() if reference() is not None] == []
    assert all(not part._forward_hooks and not part._forward_pre_hooks for part in model.modules())
    assert model(torch.tensor([[5, 6, 7]])).logits.isfinite().all()
