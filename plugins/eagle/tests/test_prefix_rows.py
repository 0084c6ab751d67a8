"""A head behind a prefix that its target took over drafts what it drafts where the whole prompt ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import checkpoints
import pytest
from layouts import LAYOUTS, three
from prefixes import engine, sharing, talk
from runs import ids_of, params, target

SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"num_speculative_tokens": 3},
    "tree": {"num_speculative_tokens": 6, "tree_top_k": 3, "tree_depth": 3},
}


def config(folder: Path, method: str, shape: str) -> dict[str, Any]:
    layout = three(0, aux=3) if method == "eagle3" else LAYOUTS["eagle-fc-bias"]
    keys: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]} if method == "eagle3" else {}
    draft = checkpoints.save(folder / method, layout.tensors, layout.settings)
    return {"method": method, "model": draft, **SHAPES[shape], **keys}


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("width", [None, pytest.param(8, marks=pytest.mark.slow)])
def test_drafts_behind_a_prefix_that_was_taken_over_are_those_of_the_whole_prompt(
    method: str, shape: str, width: int | None, tmp_path: Path
) -> None:
    model, texts = target("llama"), sharing((100, 120, 90), 70)
    sampling = params(3, 0.0, max_tokens=10)
    found = {}
    for reuse in (False, True):
        drafting = config(tmp_path / str(reuse), method, shape)
        with engine(model, config=drafting, reuse=reuse, decode_width=width, prefill_chunk_size=32) as llm:
            assert llm._engine.runner is not None
            proposer, drafts = llm._engine.runner._proposer, {}
            propose = proposer.propose

            def record(batch: Any, propose: Any = propose, drafts: dict[Any, Any] = drafts) -> Any:
                draft = propose(batch)
                host, at = draft.to_host(), 0
                for i, length in enumerate(host.lengths):
                    if length:
                        request = batch.request(i)
                        drafts[request.id, len(request.tokens)] = host.tokens[at : at + length].tolist()
                    at += length
                return draft

            proposer.propose = record  # type: ignore[method-assign]
            found[reuse] = (ids_of(talk(llm, texts, sampling)), drafts)
            hits = llm.get_state().prefix_cache_hits
    assert hits > 600
    assert found[True][0] == found[False][0]
    assert len(found[True][1]) > 20 and found[True][1] == found[False][1]
