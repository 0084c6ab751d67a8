"""Token trees: whatever they look like, tokens are those of plain decoding, and what stays is that of the path."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from runs import VOCAB, ids_of, params, prompts, run, target

from specdec_core.draft import BatchView, Draft
from specdec_core.markers import hookimpl
from specdec_core.metrics import SpecMetrics
from specdec_core.stats import StepStats
from specdec_core.traits import MethodTraits
from specdec_engine import LLM, SamplingParams
from specdec_engine.decoding import trees
from specdec_engine.requests.request import Request
from specdec_engine.requests.scheduled_rows import ScheduledRows
from specdec_testing.families import RIGHT
from specdec_testing.recording import RecordingProposer
from specdec_testing.stubs import Stub, stub_plugin
from specdec_testing.targets import tiny_target
from specdec_testing.trees import GarbageTree, PerfectTree, RaggedTree, Tree, TreeStub, deep, grow

NODES = 11
LENGTHS = (1, 90, 7, 33)
# (dtype, decode width): a width below the rows of a tree, which then runs in several parts.
MODES = {
    "free-fp32": (torch.float32, None),
    "fixed-fp32": (torch.float32, 8),
    "fixed-bf16": (torch.bfloat16, 8),
}
SLOW_MODE = pytest.param("fixed-fp32", marks=pytest.mark.slow)
all_modes = pytest.mark.parametrize("mode", ["free-fp32", SLOW_MODE, "fixed-bf16"])

OFTEN = ("llama", "gemma3")
FAMILIES = [*OFTEN, *(pytest.param(name, marks=pytest.mark.slow) for name in sorted({*RIGHT} - {*OFTEN}))]


def setting(mode: str, family: str = "llama") -> tuple[Any, dict[str, Any]]:
    dtype, width = MODES[mode]
    return target(family, dtype), {"decode_width": width}


def mixed_params(count: int = len(LENGTHS), max_tokens: int = 12, **more: Any) -> list[SamplingParams]:
    """Greedy and sampled ones in turn."""
    pairs = zip(params(count, 0.0, max_tokens, **more), params(count, 0.8, max_tokens, **more), strict=True)
    return [pair[i % 2] for i, pair in enumerate(pairs)]


def tree_stubs(texts: Any, plain: Any) -> dict[str, TreeStub]:
    return {
        "perfect": PerfectTree.of_run(texts, plain, VOCAB),
        "garbage": GarbageTree(VOCAB),
        "ragged": RaggedTree(VOCAB),
    }


def total(results: Any, name: str) -> int:
    return sum(getattr(result.metrics, name) for result in results)


def logprobs_of(results: Any) -> list[Any]:
    return [[sample.logprobs for sample in result.outputs] for result in results]


@pytest.mark.parametrize("family", FAMILIES)
@all_modes
def test_every_tree_gives_the_plain_tokens_in_a_mixed_batch(family: str, mode: str) -> None:
    """And at a fixed width the very same logits, whatever stands beside a row in its tree."""
    model, llm = setting(mode, family)
    texts, sampling = prompts(LENGTHS), mixed_params(logprobs=2)
    plain = run(model, texts, sampling, **llm)
    assert len({tuple(r.outputs[0].token_ids) for r in plain}) == len(texts)
    for name, stub in tree_stubs(texts, plain).items():
        spec = run(model, texts, sampling, stub, k=NODES, **llm)
        assert ids_of(spec) == ids_of(plain), name
        if mode.startswith("fixed"):
            assert logprobs_of(spec) == logprobs_of(plain), name
        if isinstance(stub, PerfectTree):
            assert stub.strayed == 0 and total(spec, "accepted") >= stub.right > len(texts)


class EveryShape(TreeStub):
    """In one batch: the perfect tree, a perfect chain with parents, garbage, and nothing, by request and step."""

    def __init__(self, perfect: PerfectTree) -> None:
        super().__init__()
        self.perfect, self.garbage = perfect, RaggedTree(VOCAB)
        self.seen: set[int] = set()

    def tree(self, batch: BatchView, i: int) -> Tree:
        kind = (int(batch.request(i).id.partition("-")[0]) + self.calls) % 4
        self.seen.add(kind)
        if kind == 0:
            return self.perfect.tree(batch, i)
        if kind == 1:
            chain = list(self.perfect.recorded.row(batch, i))[: int(batch.max_draft[i])]
            return chain, list(range(-1, len(chain) - 1))
        return self.garbage.tree(batch, i) if kind == 2 else ([], [])


@all_modes
@pytest.mark.parametrize("chunk", [7, 512])
def test_trees_beside_chains_plain_rows_and_prompt_chunks_give_the_plain_tokens(mode: str, chunk: int) -> None:
    model, llm = setting(mode)
    texts, sampling = prompts(LENGTHS), mixed_params(max_tokens=20)
    plain = run(model, texts, sampling, prefill_chunk_size=chunk, **llm)
    stub = EveryShape(PerfectTree.of_run(texts, plain, VOCAB))
    spec = run(model, texts, sampling, stub, k=NODES, prefill_chunk_size=chunk, max_num_seqs=4, **llm)
    assert ids_of(spec) == ids_of(plain)
    assert stub.seen == {0, 1, 2, 3} and total(spec, "accepted") > 30


@all_modes
def test_preemption_in_the_middle_gives_the_plain_tokens(mode: str) -> None:
    model, llm = setting(mode)
    texts, sampling = prompts((30, 41, 22)), mixed_params(3, 45)
    plain = run(model, texts, sampling, **llm)
    for stub in tree_stubs(texts, plain).values():
        spec = run(model, texts, sampling, stub, k=NODES, kv_cache_tokens=128, **llm)
        assert ids_of(spec) == ids_of(plain)
        assert any(reason == "preempted" for _, reason in stub.finished)


@all_modes
def test_samples_of_a_prompt_equal_their_plain_ones(mode: str) -> None:
    model, llm = setting(mode)
    texts, sampling = prompts((9, 40)), params(2, 0.8, n=3)
    plain = run(model, texts, sampling, **llm)
    for stub in tree_stubs(texts, plain).values():
        assert ids_of(run(model, texts, sampling, stub, k=NODES, **llm)) == ids_of(plain)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_trees_of_256_nodes_give_the_plain_tokens(family: str) -> None:
    model, texts, sampling = target(family), prompts((5, 70)), mixed_params(2, 24)
    plain = run(model, texts, sampling)
    for stub in (PerfectTree.of_run(texts, plain, VOCAB), GarbageTree(VOCAB, parent=deep)):
        spec = run(model, texts, sampling, stub, k=256)
        assert ids_of(spec) == ids_of(plain)
        assert max(len(r.metrics.drafted_per_pos) for r in spec) > 8


def near_the_end(stub: TreeStub, k: int) -> SpecMetrics:
    """Run gpt2 up to its last position; it has a table of them, and a node past its end would be an error."""
    model, texts = tiny_target("gpt2", n_positions=40), prompts((30, 25))
    sampling = [SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)] * 2
    plain = run(model, texts, sampling)
    spec = run(model, texts, sampling, stub, k=k)
    assert ids_of(spec) == ids_of(plain)
    assert all(len(t["prompt_token_ids"]) + len(r.outputs[0].token_ids) == 40 for t, r in zip(texts, spec, strict=True))
    metrics = SpecMetrics()
    metrics.merge(r.metrics for r in spec)
    return metrics


def test_a_tree_near_the_end_of_the_context_is_cut_by_depth_and_not_by_its_number_of_nodes() -> None:
    star = GarbageTree(VOCAB, parent=lambda rng, node: -1)
    metrics = near_the_end(star, 30)
    # One place before the last id, 30 nodes still run side by side; at the last id none can be of use.
    assert metrics.cut == 0 and metrics.drafted == star.drafted == 30 * metrics.drafts
    assert metrics.drafted_per_pos == [metrics.drafts]
    stick = GarbageTree(VOCAB, parent=lambda rng, node: node - 1)
    metrics = near_the_end(stick, 30)
    assert metrics.proposed == stick.drafted and metrics.cut == metrics.proposed - metrics.drafted > 0
    assert len(metrics.drafted_per_pos) <= 40 - 25 - 2


def test_nodes_within_a_depth_and_a_number_stay_with_their_parents() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        sizes = [int(n) for n in rng.integers(0, 20, 3)]
        grown = [grow(rng, size, VOCAB) for size in sizes]
        draft = Draft.of([ids for ids, _ in grown])
        draft.parents = np.array([parent for _, parents in grown for parent in parents], np.int32)
        deepest, most = rng.integers(0, 6, 3).tolist(), rng.integers(0, 20, 3).tolist()
        cut = trees.within(draft, deepest, most)
        start, want = 0, []
        for (ids, parents), depth, count in zip(grown, deepest, most, strict=True):
            paths = [path_ids(ids, parents, node) for node in range(len(ids))]
            want.append([path for path in paths[:count] if len(path) <= depth])
        assert cut.lengths == [len(paths) for paths in want] and cut.parents is not None
        for paths in want:
            row = slice(start, start + len(paths))
            ids, parents = cut.tokens[row].tolist(), cut.parents[row].tolist()
            assert [path_ids(ids, parents, node) for node in range(len(ids))] == paths
            start += len(paths)


def path_ids(ids: list[int], parents: list[int], node: int) -> list[int]:
    return [] if node < 0 else [*path_ids(ids, parents, parents[node]), ids[node]]


def test_a_tree_that_the_arena_has_no_rows_for_is_cut_and_the_request_goes_on() -> None:
    model, texts, sampling = target("llama"), prompts((50,)), params(1, max_tokens=40)
    plain = run(model, texts, sampling)
    stub = GarbageTree(VOCAB)
    spec = run(model, texts, sampling, stub, k=64, kv_cache_tokens=96)
    assert ids_of(spec) == ids_of(plain)
    assert 0 < total(spec, "cut") < total(spec, "proposed")
    assert [reason for _, reason in stub.finished] == ["done"], "nobody was preempted for nodes that cannot fit"


def keys_and_values(llm: LLM, request: Request) -> list[torch.Tensor]:
    """What the arena holds of a request's run positions, layer by layer."""
    arena = llm._engine.target.arena
    slots = torch.from_numpy(arena.slots(request.segment, 0, request.run_len, written=False).astype(np.int64))
    pages = [pages for _, layer in sorted(arena._layers.items()) for pages in layer]
    return [p[slots // arena.page_size, :, slots % arena.page_size].clone() for p in pages]


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3", "gpt_oss", "deepseek_v3"])
def test_after_every_commit_the_arena_holds_what_a_fresh_prefill_of_the_text_gives(family: str) -> None:
    model, texts, sampling = target(family), prompts((20, 9)), mixed_params(2, 60)
    plain = run(model, texts, sampling)
    stub = PerfectTree.of_run(texts, plain, VOCAB)
    config = {"method": "stub", "num_speculative_tokens": NODES}
    rounds = moved = 0
    with LLM(hf_model=model, speculative_config=config, plugins={"stub": stub_plugin(stub)}, strict=True) as llm:
        while rounds < 50:
            requests = [group.requests[0] for group in llm._engine.submit(texts, sampling)]
            while not all(request.finished for request in requests):
                before = [request.run_len for request in requests]
                llm._engine.stepper.step()
                for request, old in zip(requests, before, strict=True):
                    if request.finished or request.run_len < request.prompt_len:
                        continue
                    rounds += 1
                    moved += request.run_len - old > 1
                    fresh = Request("fresh", 0, request.tokens[: request.run_len], request.sampling_params, 0, 0)
                    assert llm._engine.target.arena.reserve(fresh.segment, request.run_len)
                    llm._engine.target.forward([ScheduledRows(fresh, 0, fresh.tokens, True)])
                    fresh.run_len = request.run_len
                    for mine, theirs in zip(keys_and_values(llm, request), keys_and_values(llm, fresh), strict=True):
                        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
                    llm._engine.target.arena.release(fresh.segment)
            for request in requests:
                assert request.output_ids == plain[requests.index(request)].outputs[0].token_ids
    assert moved > 20


@pytest.mark.parametrize("rows", ["all", "last"])
@pytest.mark.parametrize("width", [None, 8])
def test_the_proposer_is_shown_the_rows_of_the_accepted_path(rows: Any, width: int | None) -> None:
    model, texts, sampling = target("llama"), prompts((12, 30)), params(2)
    plain = run(model, texts, sampling)
    for inner in (PerfectTree.of_run(texts, plain, VOCAB), RaggedTree(VOCAB)):
        stub = RecordingProposer(rows, aux_layers=(0, 1), inner=inner)
        spec = run(model, texts, sampling, stub, k=NODES, decode_width=width)
        assert stub.layout_problems() == []
        for text, result in zip(texts, spec, strict=True):
            ids = text["prompt_token_ids"] + result.outputs[0].token_ids
            with torch.inference_mode():
                states = model(torch.tensor([ids]), use_cache=False, output_hidden_states=True).hidden_states
            for call in stub.calls_seen:
                assert call.rows is not None and call.rows.hidden is not None and call.rows.aux is not None
                for i, name in enumerate(call.request_ids):
                    if name == f"{result.request_id}-0":
                        own = call.rows.request == i
                        at = torch.from_numpy(call.rows.positions[own].astype(np.int64))
                        torch.testing.assert_close(call.rows.hidden[own], states[-1][0][at], atol=2e-4, rtol=2e-4)
                        for layer in (0, 1):
                            seen = call.rows.aux[own][:, layer]
                            torch.testing.assert_close(seen, states[layer][0][at], atol=2e-4, rtol=2e-4)


def test_positions_of_the_metrics_are_depths() -> None:
    class Fork(TreeStub):
        def tree(self, batch: BatchView, i: int) -> Tree:
            return ([5, 6, 7, 8, 9], [-1, -1, 0, 0, 3]) if batch.max_draft[i] >= 5 else ([], [])

    model, texts, sampling = target("llama"), prompts((9, 20)), params(2, max_tokens=12)
    spec = run(model, texts, sampling, Fork(), k=5)
    metrics = SpecMetrics()
    metrics.merge(r.metrics for r in spec)
    assert metrics.drafted_per_pos[0] == metrics.drafts > 0, "rows with a node at depth 1, not nodes"
    assert len(metrics.drafted_per_pos) == 3
    with LLM(
        hf_model=model,
        speculative_config={"method": "stub", "num_speculative_tokens": 5},
        plugins={"stub": stub_plugin(Fork())},
    ) as llm:
        llm.generate(texts, sampling)
        assert llm.get_metrics().drafted_per_pos == metrics.drafted_per_pos
        assert llm.get_metrics().accepted_per_pos == metrics.accepted_per_pos


def test_observers_are_told_which_nodes_were_accepted() -> None:
    model, texts, sampling = target("llama"), prompts((9,)), params(1, 0.0, max_tokens=12)
    answer, begin = ids_of(run(model, texts, sampling))[0][0], len(texts[0]["prompt_token_ids"])
    seen: list[list[list[int]]] = []

    class Second(TreeStub):
        def tree(self, batch: BatchView, i: int) -> Tree:
            ahead = answer[len(batch.requests[i].tokens) - begin :][:2]
            if len(ahead) < 2 or batch.max_draft[i] < 4:
                return [], []
            first, second = ahead
            return [(first + 1) % VOCAB, first, (second + 1) % VOCAB, second], [-1, -1, 1, 1]

    class Listening:
        @hookimpl
        def specdec_step_finished(self, step: StepStats) -> None:
            if any(step.drafted):
                assert step.nodes is not None
                seen.append(step.nodes)

    config = {"method": "stub", "num_speculative_tokens": 4, "observers": ["listening"]}
    plugins = {"stub": stub_plugin(Second()), "listening": Listening()}
    with LLM(hf_model=model, speculative_config=config, plugins=plugins) as llm:
        assert ids_of(llm.generate(texts, sampling))[0][0] == answer
    assert seen[:3] == [[[1, 3]]] * 3  # near the end of the text trees are cut


def test_a_method_for_trees_may_draft_chains_and_they_are_cut_at_the_end_of_the_context() -> None:
    class Chains(Stub):
        traits = MethodTraits(shape="tree")

        def propose(self, batch: BatchView) -> Draft:
            self.calls += 1
            return Draft.of([[7] * int(most) for most in batch.max_draft])

    model, texts = tiny_target("gpt2", n_positions=40), prompts((30,))
    sampling = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    spec = run(model, texts, sampling, Chains(), k=12)
    assert ids_of(spec) == ids_of(run(model, texts, sampling))
    assert total(spec, "cut") > 0


def test_the_drafts_before_a_row_are_those_of_its_path() -> None:
    rng = np.random.default_rng(0)
    request = Request("r", 0, np.array([3, 4], np.int32), SamplingParams(), 0, 0)
    ids, parents = grow(rng, 30, VOCAB)
    work = ScheduledRows(request, 1, np.array([4, *ids], np.int32), False, 30, 31, parents=np.array(parents, np.int32))
    assert work.path(0).tolist() == []
    for node in range(len(ids)):
        assert work.path(node + 1).tolist() == path_ids(ids, parents, node)
