"""A row of the model with NaN or infinite logits ends its own request, with what came before it, and no other one."""

from __future__ import annotations

import itertools
import math
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from runs import target

from specdec_core.draft import BatchView
from specdec_engine import LLM, SamplingParams
from specdec_testing.stubs import Fixed, Soft, Stub, stub_plugin
from specdec_testing.table import table_target
from specdec_testing.trees import Tree, TreeStub

VOCAB = 12
BAD = 5  # the id after which the model's logits are broken
SICK, WELL = [2], [6]  # prompts: 2, 3, 4, BAD; and 6, 7, 6, 7, ... for ever
EMITTED = [3, 4, BAD]

KINDS = ("nan", "-nan", "+inf", "all -inf")


def sure(*pairs: tuple[int, int]) -> np.ndarray[Any, Any]:
    """A table of rows that are certain, as `pairs` say, and flat where they say nothing."""
    table = np.full((VOCAB, VOCAB), 1 / VOCAB)
    for before, after in pairs:
        table[before] = np.eye(VOCAB)[after]
    return table


TABLE = sure((2, 3), (3, 4), (4, BAD), (6, 7), (7, 6))


def break_rows(row: torch.Tensor, kind: str) -> None:
    if kind == "all -inf":
        row.fill_(-torch.inf)
    else:
        row[..., 8] = {"nan": np.nan, "+inf": np.inf, "-nan": math.copysign(math.nan, -1.0)}[kind]


def breaking() -> Any:
    """The model of TABLE whose head gives rows broken in the way `model.kind` after BAD, unless that is None."""
    model = table_target(TABLE)
    model.kind = None

    def hook(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        bad = args[0].argmax(-1) == BAD
        if model.kind is not None and bad.any():
            output = output.clone()
            rows = output[bad]
            break_rows(rows, model.kind)
            output[bad] = rows
        return output

    model.lm_head.register_forward_hook(hook)
    return model


class Branches(TreeStub):
    """Drafts the ids that the model takes, and beside each of them, tested first, BAD with an id behind it.

    With `past` it drafts BAD and what could follow it on the path as well. Rows of side branches are broken too.
    """

    AFTER: ClassVar[dict[int, list[int]]] = {2: [3, 4], 3: [4], 6: [7, 6], 7: [6, 7]}

    def __init__(self, *, past: bool) -> None:
        super().__init__()
        self.past = past

    def tree(self, batch: BatchView, i: int) -> Tree:
        newest = int(batch.request(i).tokens[-1])
        ids: list[int] = []
        parents: list[int] = []
        at = -1
        for token in self.AFTER.get(newest, ()):
            ids += [BAD, 9, token]
            parents += [at, len(parents), at]
            at = len(ids) - 1
        if self.past and newest < BAD:
            ids += [BAD, 8, 9]
            parents += [at, len(parents), len(parents) + 1]
        most = int(batch.max_draft[i])
        return ids[:most], parents[:most]


def processor(output_ids: Any, logits: torch.Tensor) -> torch.Tensor:
    return logits


PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.0},
    "truncated": {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.01},
    "min_tokens": {"temperature": 1.0, "min_tokens": 8, "stop_token_ids": [9]},
    "processors": {"temperature": 0.0, "logits_processors": [processor], "repetition_penalty": 1.1},
    "logprobs": {"temperature": 1.0, "logprobs": 2},
}
PATH = [3, 4, BAD, 8, 9]
DRAFTERS: dict[str, tuple[Stub | None, dict[str, Any]]] = {
    "plain": (None, {}),
    "coupled": (Fixed(PATH), {"rejection_sample_method": "coupled"}),
    "wrong drafts": (Fixed([8, 9]), {"rejection_sample_method": "coupled"}),
    "standard": (Soft(sure((2, 3), (3, 4), (4, BAD), (BAD, 8))), {"rejection_sample_method": "standard"}),
    "block": (Soft(sure((2, 3), (3, 4), (4, BAD), (BAD, 8))), {"rejection_sample_method": "block"}),
    "standard, certain drafts": (Fixed(PATH), {"rejection_sample_method": "standard"}),
    "block, certain drafts": (Fixed(PATH), {"rejection_sample_method": "block"}),
    **{
        f"{verifier}, {name}": (Branches(past=past), {"rejection_sample_method": verifier})
        for verifier in ("coupled", "standard")
        for name, past in (("trees beside the path", False), ("trees past the row", True))
    },
    "block, impossible drafts": (Soft(sure((2, BAD), (3, BAD), (6, BAD))), {"rejection_sample_method": "block"}),
    "standard, impossible drafts": (Soft(sure((2, BAD), (3, BAD), (6, BAD))), {"rejection_sample_method": "standard"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_request_ends_at_the_models_broken_row_and_others_go_on(name: str) -> None:
    stub, config = DRAFTERS[name]
    more: dict[str, Any] = {}
    if stub is not None:
        more["plugins"] = {"stub": stub_plugin(stub)}
        more["speculative_config"] = {
            "method": "stub",
            "num_speculative_tokens": 5 if stub.traits.shape == "chain" else 12,
            **config,
        }
    model = breaking()
    with LLM(hf_model=model, strict=True, **more) as llm:
        for kind, how in itertools.product(KINDS, PARAMS):
            model.kind = kind
            params = SamplingParams(max_tokens=12, ignore_eos=True, seed=1, **PARAMS[how])
            first, well, second = (result.outputs[0] for result in llm.generate([SICK, WELL, SICK], params))
            for sick in (first, second):
                assert sick.token_ids == EMITTED, (kind, how)
                assert sick.finish_reason == "error", (kind, how)
                assert "output id 3: the model's logits are not finite" in (sick.error or "")
                assert "after position 3" in (sick.error or "")
                assert sick.logprobs is None or len(sick.logprobs) == 3
            assert (well.token_ids, well.finish_reason, well.error) == ([7, 6] * 6, "length", None), (kind, how)
        llm._engine.target.arena.check_integrity([])


def test_a_prompt_whose_last_row_is_broken_ends_with_no_ids() -> None:
    model = breaking()
    with LLM(hf_model=model) as llm:
        model.kind = "nan"
        sick, well = (r.outputs[0] for r in llm.generate([[2, BAD], WELL], SamplingParams(temperature=0.0)))
    assert (sick.token_ids, sick.finish_reason) == ([], "error")
    assert len(well.token_ids) == 16


def test_what_a_processor_breaks_is_told_of_the_processor() -> None:
    def breaks(output_ids: Any, logits: torch.Tensor) -> torch.Tensor:
        logits[8] = torch.inf
        return logits

    params = SamplingParams(temperature=1.0, logits_processors=[breaks])
    with LLM(hf_model=table_target(TABLE)) as llm:
        (output,) = llm.generate([SICK], params)[0].outputs
    assert (output.token_ids, output.finish_reason) == ([], "error")
    assert "the logits processors returned logits that are not finite" in (output.error or "")


@pytest.mark.parametrize("width", [None, 4])
def test_pages_that_held_nan_serve_later_requests_as_new_ones_do(width: int | None) -> None:
    model = target("llama")
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    prompt = [7] * 40
    with LLM(hf_model=model, kv_cache_tokens=96, decode_width=width) as llm:
        alone = llm.generate([prompt], params)[0].outputs[0].token_ids
    with LLM(hf_model=model, kv_cache_tokens=96, decode_width=width) as llm:
        embedding = model.get_input_embeddings().weight
        kept = embedding[9].clone()
        with torch.no_grad():
            embedding[9] = torch.nan
        sick = llm.generate([[9] * 90], params)[0].outputs[0]
        with torch.no_grad():
            embedding[9] = kept
        assert sick.finish_reason == "error"
        assert llm.generate([prompt], params)[0].outputs[0].token_ids == alone
