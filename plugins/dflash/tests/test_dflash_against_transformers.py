"""The same checkpoint in transformers' own DFlash decoding gives the same drafts, accepted counts and text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from dflash_replay import Wrapped, watched
from transformers.generation.candidate_generator import DFlashTokenCandidateGenerator

from specdec_engine import LLM, SamplingParams
from specdec_testing.targets import tiny_target

BLOCK, TOKENS = 6, 40
PROMPT = [5, 9, 77, 31, 8, 64, 20, 11, 3, 90, 46, 101, 7]


def assistant(model: Any, seed: int, **settings: Any) -> Any:
    """Return transformers' drafter for a target, with random weights that lead to varied drafts."""
    config = transformers.MuseGlimmerAssistantConfig(
        hidden_size=model.config.hidden_size,
        intermediate_size=2 * model.config.hidden_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        block_size=BLOCK,
        mask_token_id=4,
        **{"target_layer_ids": [0, 2, 4], **settings},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = transformers.MuseGlimmerAssistantModel(config)
        for name, parameter in made.named_parameters():
            torch.nn.init.normal_(parameter, float("norm" in name), 1.5 / parameter.shape[-1] ** 0.5)
    return made.eval()


def fond_of(model: Any, ids: list[int]) -> None:
    """Let a few ids win most of the time, so that drafts which use the same head are accepted now and then."""
    with torch.no_grad():
        model.get_output_embeddings().weight[ids] *= 10.0


def by_transformers(
    model: Any, drafter: Any, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[int], dict[int, list[int]]]:
    """Return the text after the prompt, and the drafts by the number of ids known when they were made."""
    drafts: dict[int, list[int]] = {}
    original = DFlashTokenCandidateGenerator.get_candidates

    def watching(self: Any, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        candidates, logits = original(self, input_ids, *args, **kwargs)
        known = input_ids.shape[1]
        if candidates.shape[1] > known:
            drafts[known] = candidates[0, known:].tolist()
        return candidates, logits

    monkeypatch.setattr(DFlashTokenCandidateGenerator, "get_candidates", watching)
    out = model.generate(
        torch.tensor([PROMPT]), assistant_model=drafter, speculation_type="dflash", do_sample=False,
        max_new_tokens=TOKENS, eos_token_id=None,
    )  # fmt: skip
    return out[0, len(PROMPT) :].tolist(), drafts


def by_specdec(model: Any, folder: Path) -> tuple[list[int], dict[int, list[int]]]:
    """Return the same from the engine."""
    config = {"model": str(folder)}  # neither method nor k: the checkpoint says both
    sampling = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    with LLM(hf_model=model, speculative_config=config, strict=True) as llm:
        resolved, drafting = llm.resolved_config, llm._engine.runner
        assert resolved is not None
        assert drafting is not None
        assert (resolved.method, resolved.num_speculative_tokens) == ("dflash", BLOCK - 1)
        recorder = watched(drafting._proposer, resolved.traits)
        drafting._proposer = recorder
        (result,) = llm.generate([{"prompt_token_ids": PROMPT}], sampling)
    assert isinstance(recorder.inner, Wrapped)
    drafts = {
        len(call.tokens[0]): draft.tokens.tolist()
        for call, draft in zip(recorder.calls_seen, recorder.inner.drafts, strict=True)
        if call.max_draft[0]
    }
    return result.outputs[0].token_ids, drafts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama", {"layer_types": ["full_attention"] * 2}),
        ("qwen3", {"layer_types": ["full_attention"] * 2, "target_layer_ids": [1, 3]}),
        ("llama", {"layer_types": ["sliding_attention"] * 2, "sliding_window": 12}),
        ("qwen3", {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 20}),
    ],
)
def test_drafts_and_text_are_those_of_transformers(
    family: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_target(family, num_hidden_layers=6)
    fond_of(model, [7, 30, 31])
    drafter = assistant(model, 4, **settings)
    drafter.save_pretrained(tmp_path)
    text, theirs = by_transformers(model, drafter, monkeypatch)
    own_text, ours = by_specdec(model, tmp_path)
    assert own_text == text
    whole = {known: tokens for known, tokens in ours.items() if len(tokens) == BLOCK - 1}
    # At the end of the text one of them drafts shorter blocks, so only there the numbers of known ids may part.
    known = sorted(set(theirs) & set(whole))
    assert len(known) > 8
    assert known == sorted(n for n in theirs if n <= known[-1])
    assert [whole[n] for n in known] == [theirs[n] for n in known]
    assert len({tuple(tokens) for tokens in whole.values()}) > 3, "drafts were varied"
    assert known[-1] - known[0] > len(known) + 3, "some drafts were accepted"
