"""Through the engine: drafts are the oracle's over a stock forward of the finished text, in several families.

So taps and their numbering, the shift of tokens, positions and the states of accepted drafts are right end to end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import oracle
import pytest
import torch
import transformers
from host import split
from layouts import LAYOUTS, Layout, three
from oracle_head import Head
from torch import Tensor

from specdec_core.draft import BatchView, Draft, FinishReason, RequestView
from specdec_engine import LLM, SamplingParams
from specdec_testing.recording import Call, RecordingProposer
from specdec_testing.stubs import Stub
from specdec_testing.targets import tiny_config, tiny_target

FAMILIES = ("llama", "gemma2", "gemma3", "qwen3", "gpt2", "mistral", "opt", "phi")
COMMON = (
    *("vocab_size", "bos_token_id", "eos_token_id", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "max_position_embeddings", "tie_word_embeddings"),
)
HALF = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.8, 0.6, 0.4]}


class Wrapped(Stub):
    """A proposer with its traits, as a recorder wants it."""

    def __init__(self, proposer: Any, traits: Any) -> None:
        super().__init__()
        self.traits, self._proposer = traits, proposer
        self.drafts: list[list[list[int]]] = []  # the host shortens the drafts that it is given

    def start(self, request: RequestView) -> None:
        self._proposer.start(request)

    def propose(self, batch: BatchView) -> Draft:
        draft: Draft = self._proposer.propose(batch)
        self.drafts.append([tokens for tokens, _ in split(draft)])
        return draft

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        self._proposer.finish(request, reason)


@contextmanager
def recorded(model: Any, config: dict[str, Any], **engine: Any) -> Iterator[tuple[LLM, RecordingProposer]]:
    """Open an engine whose proposer is recorded."""
    with LLM(hf_model=model, speculative_config=config, strict=True, **engine) as llm:
        drafting, resolved = llm._engine.runner, llm.resolved_config
        assert drafting is not None
        assert resolved is not None
        traits = resolved.traits
        recorder = RecordingProposer(
            "all",
            hidden=traits.hidden,
            aux_layers=traits.aux_layers,
            inner=Wrapped(drafting._proposer, traits),
        )
        drafting._proposer = recorder
        yield llm, recorder


def calls_of(recorder: RecordingProposer) -> Iterator[tuple[Call, list[list[int]]]]:
    """Yield each call with the drafts of its rows."""
    assert isinstance(recorder.inner, Wrapped)
    yield from zip(recorder.calls_seen, recorder.inner.drafts, strict=True)


def final_norm(model: Any) -> Any:
    """Return the module in front of which the residual stream after the last layer stands."""
    base = model.get_decoder()
    return next(
        getattr(base, name) for name in ("norm", "ln_f", "final_layer_norm", "final_layernorm") if hasattr(base, name)
    )


def stock_states(model: Any, ids: list[int]) -> list[Tensor]:
    """Return R_0 .. R_L and the final state of every position, by transformers' own forward."""
    kept: list[Tensor] = []
    model.set_attn_implementation("eager")  # the one that every family spells out, caps of scores included
    hook = final_norm(model).register_forward_pre_hook(lambda module, args: kept.append(args[0][0].clone()))
    try:
        with torch.inference_mode():
            out = model(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
    finally:
        hook.remove()
    return [*(state[0] for state in out.hidden_states[:-1]), kept[0], out.hidden_states[-1][0]]


def rows_of(layout: Layout, states: list[Tensor], ids: list[int], count: int, aux: tuple[int, ...]) -> list[oracle.Row]:
    chosen = torch.cat([states[k] for k in aux], dim=-1) if layout.method == "eagle3" and aux else states[-1]
    return [oracle.Row(ids[p + 1], chosen[p], p) for p in range(count)]


def head_of(layout: Layout, model: Any) -> Head:
    tables = model.get_input_embeddings().weight.detach(), model.get_output_embeddings().weight.detach()
    return Head(
        layout.flavour,
        {"num_hidden_layers": 1, **layout.settings},
        layout.tensors,
        embedding=tables[0],
        lm_head=tables[1],
    )


def assert_drafts_and_rows_are_right(
    model: Any, layout: Layout, folder: Path, aux: tuple[int, ...], **options: Any
) -> RecordingProposer:
    keys = {"eagle_aux_hidden_state_layer_ids": list(aux)} if aux else {}
    draft = checkpoints.save(folder, layout.tensors, layout.settings)
    config = {"method": layout.method, "model": draft, "num_speculative_tokens": 3, **keys, **HALF, **options}
    rng = np.random.default_rng(layout.seed)
    prompts = [rng.integers(3, 128, length).tolist() for length in (5, 24, 1)]
    sampling = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    with recorded(model, config, prefill_chunk_size=9, max_num_seqs=2) as (llm, recorder):
        results = llm.generate([{"prompt_token_ids": ids} for ids in prompts], sampling)
    assert recorder.layout_problems() == []
    texts = [ids + result.outputs[0].token_ids for ids, result in zip(prompts, results, strict=True)]
    states = [stock_states(model, ids) for ids in texts]
    head, compared, margin = head_of(layout, model), 0, np.inf
    for call, drafts in calls_of(recorder):
        for i, (tokens, known) in enumerate(zip(drafts, call.tokens, strict=True)):
            text = next(t for t, ids in enumerate(texts) if ids[: len(known)] == known)
            assert_states(call, i, states[text], aux if layout.method == "eagle3" else ())
            if not call.max_draft[i]:
                continue
            rows = rows_of(layout, states[text], texts[text], call.run_len[i], aux)
            tree = oracle.chain(head, rows, call.max_draft[i])
            assert tokens == tree.tokens
            margin, compared = min(margin, tree.margin), compared + 1
    assert compared > 12
    assert margin > 1e-3
    assert sum(result.metrics.accepted for result in results) > 8, "blocks of accepted drafts were looked at"
    return recorder


def assert_states(call: Call, i: int, states: list[Tensor], aux: tuple[int, ...]) -> None:
    assert call.rows is not None
    mine = np.flatnonzero(call.rows.request == i)
    at = call.rows.positions[mine].tolist()
    if not aux:
        assert call.rows.hidden is not None
        torch.testing.assert_close(call.rows.hidden[mine], states[-1][at], atol=2e-4, rtol=2e-4)
        return
    assert call.rows.aux is not None
    for j, k in enumerate(aux):
        torch.testing.assert_close(call.rows.aux[mine, j], states[k][at], atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_third_generation_reads_the_states_that_it_names_in_every_family(family: str, tmp_path: Path) -> None:
    """State 0 enters the first layer, state L leaves the last one and has seen no norm."""
    model = tiny_target(family)
    last = model.config.num_hidden_layers
    layout = three(FAMILIES.index(family), aux=3)
    assert_drafts_and_rows_are_right(model, layout, tmp_path / "x", (0, last - 1, last))


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "opt"])
def test_the_first_generation_reads_the_state_behind_the_final_norm(family: str, tmp_path: Path) -> None:
    layout = LAYOUTS["eagle-mistral"] if family == "gemma2" else LAYOUTS["eagle-fc-bias"]
    assert_drafts_and_rows_are_right(tiny_target(family), layout, tmp_path / "x", ())


def test_the_default_states_are_two_the_middle_and_three_from_the_end(tmp_path: Path) -> None:
    model = tiny_target("llama", num_hidden_layers=8)
    draft = checkpoints.save(tmp_path / "x", LAYOUTS["eagle3"].tensors, LAYOUTS["eagle3"].settings)
    config = {"model": draft, "num_speculative_tokens": 2}
    with recorded(model, config) as (llm, recorder):
        (result,) = llm.generate([{"prompt_token_ids": [5, 6, 7, 8]}], SamplingParams(temperature=0.0, max_tokens=4))
    states = stock_states(model, [5, 6, 7, 8, *result.outputs[0].token_ids])
    for call in recorder.calls_seen:
        assert_states(call, 0, states, (2, 4, 5))


def test_lists_of_another_producer_name_the_same_states(tmp_path: Path) -> None:
    """SpecForge and SGLang count the layer that a state leaves, vLLM and speculators the one that it enters."""
    model = tiny_target("llama", num_hidden_layers=8)
    theirs = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True}}
    seen = []
    for name, keys in (("a", theirs), ("b", {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]})):
        settings = {**LAYOUTS["eagle3"].settings, **keys}
        draft = checkpoints.save(tmp_path / name, LAYOUTS["eagle3"].tensors, settings)
        with recorded(model, {"model": draft, "num_speculative_tokens": 2}) as (llm, recorder):
            llm.generate([{"prompt_token_ids": [5, 6, 7, 8]}], SamplingParams(temperature=0.0, max_tokens=4))
        rows = recorder.calls_seen[0].rows
        assert rows is not None
        assert rows.aux is not None
        seen.append((rows.aux, [drafts for _, drafts in calls_of(recorder)]))
    torch.testing.assert_close(seen[0][0], seen[1][0])
    assert seen[0][1] == seen[1][1]


def test_a_target_that_divides_its_states_gives_the_distributions_of_a_minicpm_head(tmp_path: Path) -> None:
    """Its own head code divides, and the borrowed head must not; probabilities show it, choices would not."""
    model = minicpm()
    layout = LAYOUTS["eagle-minicpm"]
    draft = checkpoints.save(tmp_path / "x", layout.tensors, layout.settings)
    config = {"model": draft, "num_speculative_tokens": 3, "draft_sample_method": "probabilistic"}
    prompt, sampling = [5, 6, 7, 8], SamplingParams(temperature=1.0, max_tokens=8, ignore_eos=True, seed=1)
    with recorded(model, config) as (llm, recorder):
        (result,) = llm.generate([{"prompt_token_ids": prompt}], sampling)
    ids = prompt + result.outputs[0].token_ids
    states, head, compared = stock_states(model, ids), head_of(layout, model), 0
    for call, (tokens,) in calls_of(recorder):
        rows = rows_of(layout, states, ids, call.run_len[0], ())
        nodes = oracle.followed(head, rows, tokens, range(-1, len(tokens) - 1)).nodes
        for node, distribution in zip(nodes, call.draft.q if tokens else (), strict=True):
            torch.testing.assert_close(distribution.double(), node.logits.softmax(-1), atol=1e-5, rtol=0)
            compared += 1
    assert compared > 5


def minicpm() -> Any:
    """Return a tiny random MiniCPM3."""
    sizes = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
    scales = {"dim_model_base": 8, "scale_emb": 12, "scale_depth": 1.4}
    common = {key: value for key, value in tiny_config("deepseek_v3").to_dict().items() if key in COMMON}
    model = transformers.MiniCPM3ForCausalLM(transformers.MiniCPM3Config(**common, **sizes, **scales)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 1.5 / parameter.shape[-1] ** 0.5)
    return model
