"""Forwards of the head in fixed shapes give the drafts that it makes without; a plain call stands for a graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoints
import pytest
from layouts import LAYOUTS, TARGET

from specdec_engine import LLM, SamplingParams, build
from specdec_nn.graphs import Replayed

PROMPTS = [{"prompt_token_ids": ids} for ids in ([3, 4, 5], [7] * 40, [9, 1, 2, 11, 6])]
SHAPES: dict[str, dict[str, Any]] = {
    "chain": {},
    "static tree": {"speculative_token_tree": "[(0,), (1,), (0, 0), (0, 1)]"},
    "dynamic tree": {"tree_top_k": 2, "tree_depth": 3},
}


def drafts_of(folder: Path, keys: dict[str, Any]) -> tuple[list[list[int]], list[tuple[list[int], list[int]]]]:
    """Return the ids of all prompts, and every draft."""
    head = checkpoints.save(folder, LAYOUTS["eagle3"].tensors, LAYOUTS["eagle3"].settings)
    config = {"method": "eagle3", "model": head, "num_speculative_tokens": 4, **keys}
    sampling = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
    found: list[tuple[list[int], list[int]]] = []
    with LLM(hf_model=TARGET, speculative_config=config, strict=True, max_num_seqs=2) as llm:
        runner = llm._engine.runner
        assert runner is not None
        propose: Callable[..., Any] = runner._proposer.propose

        def noted(batch: Any) -> Any:
            draft = propose(batch)
            found.append((list(draft.lengths), draft.tokens.tolist()))
            return draft

        runner._proposer.propose = noted  # type: ignore[method-assign]
        results = llm.generate(PROMPTS, sampling)
    return [list(result.outputs[0].token_ids) for result in results], found


@pytest.mark.parametrize("shape", SHAPES)
def test_a_head_in_fixed_shapes_makes_the_same_drafts(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = drafts_of(tmp_path / "a", SHAPES[shape])
    replays = 0

    def capture(action: Callable[[], None]) -> Callable[[], None]:
        def replay() -> None:
            nonlocal replays
            replays += 1
            action()

        return replay

    def all_of(target: Any) -> None:
        target.flat.capture, target.flat.graphs = capture, Replayed(target.flat.work, capture)

    monkeypatch.setattr(build, "_capture", all_of)
    assert drafts_of(tmp_path / "b", SHAPES[shape]) == wanted
    assert replays > 30, "target and head are replayed"
