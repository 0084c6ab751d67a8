"""Checks of whole steps on a device that is none, run by test_device_step.py in a process of their own.

Kernels are Triton's, in its interpreter; where an op has no Triton form, its definition runs, as on a GPU.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from specdec_engine import LLM, SamplingParams
from specdec_nn.ops.attention import triton as triton_attention
from specdec_nn.ops.attention.numba import attention as numba_attention
from specdec_nn.ops.attention.reference import attention_reference
from specdec_nn.ops.draw import triton as triton_draw
from specdec_nn.ops.logprobs import triton as triton_logprobs
from specdec_nn.ops.race import triton as triton_race
from specdec_nn.ops.top_ids import triton as triton_top_ids
from specdec_nn.ops.truncate import triton as triton_truncate
from specdec_nn.ops.truncate.numba import truncate as numba_truncate
from specdec_plugin_verifiers.kernels import triton as triton_ratios
from specdec_plugin_verifiers.kernels.verify import triton as triton_verify
from specdec_testing.table import random_table, table_target
from specdec_testing.targets import tiny_target
from specdec_testing.watched_device import NAME, Wait, as_kernel, held, install, waits

ROOT = Path(__file__).resolve().parents[1]
for _plugin in ("eagle", "medusa", "dflash", "mtp"):
    sys.path.insert(0, str(ROOT / "plugins" / _plugin / "tests"))

pytestmark = pytest.mark.filterwarnings("ignore:num_speculative_tokens . is above")  # of one module, used again
install()
VOCAB = 24
TABLE = random_table(VOCAB, seed=5, concentration=0.3)
STATIC = "[(0,), (1,), (0, 0), (0, 1), (0, 0, 0)]"
SAMPLED = {"draft_sample_method": "probabilistic"}
STRETCHED = (triton_draw, triton_logprobs, triton_race, triton_top_ids, triton_ratios, triton_verify)
PROMPTS = [[3, 4, 5], [7] * 21, [9, 1, 2, 11, 6]]
Target = Callable[[Path], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """One way to decode: the target, the speculative configuration, a temperature, and the most reads of a step."""

    target: Target
    config: dict[str, Any] | None = None
    head: Callable[[Path], str] | None = None
    temperature: float = 0.0
    most: int = 1
    same: bool = True  # the text is that of the CPU, to the id
    sampling: dict[str, Any] = field(default_factory=dict)

    def engine(self, folder: Path, device: str, **options: Any) -> LLM:
        config = self.config
        if config is not None and self.head is not None:
            config = {**config, "model": self.head(folder / "head")}
        arguments = self.target(folder)
        if "hf_model" in arguments:
            arguments["hf_model"] = arguments["hf_model"].requires_grad_(False).to(device)
        options = {"max_num_seqs": 3, "max_model_len": 128, **options}
        return LLM(**arguments, device=device, speculative_config=config, strict=True, **options)


def table(folder: Path) -> dict[str, Any]:
    return {"hf_model": table_target(TABLE, num_layers=4)}


def llama(folder: Path) -> dict[str, Any]:
    return {"hf_model": tiny_target("llama", num_hidden_layers=8)}


def llama_2(folder: Path) -> dict[str, Any]:
    return {"hf_model": tiny_target("llama")}


def mimo(folder: Path) -> dict[str, Any]:
    import mtp_models

    model = folder / "mimo"
    if not model.exists():
        mtp_models.save(model, "mimo", mtp_models.module_tensors("mimo", 1), 1)
    return {"model": str(model)}


def perfect(folder: Path) -> str:
    from perfect import perfect_head

    return perfect_head(folder, VOCAB)


def eagle_3(folder: Path) -> str:
    import checkpoints
    from layouts import LAYOUTS

    return checkpoints.save(folder, LAYOUTS["eagle3"].tensors, LAYOUTS["eagle3"].settings)


def medusa(folder: Path) -> str:
    from medusa_checkpoints import OLD_CONFIG, old_tensors, random_heads, save

    return save(folder, old_tensors(random_heads()), OLD_CONFIG)


def dflash(name: str) -> Callable[[Path], str]:
    def save(folder: Path) -> str:
        from dflash_layouts import EVERY
        from second_layouts import SECONDS

        return {**EVERY, **SECONDS}[name].save(folder)

    return save


def keys(method: str, k: int, **more: Any) -> dict[str, Any]:
    return {"method": method, "num_speculative_tokens": k, **more}


def verified_by(verifier: str) -> dict[str, Any]:
    return {"rejection_sample_method": verifier}


NGRAM = keys("ngram", 3, prompt_lookup_min=1, prompt_lookup_max=3)
CASES: dict[str, Case] = {
    "plain": Case(llama_2),
    "plain, sampled": Case(llama_2, temperature=0.8, sampling={"top_k": 9, "top_p": 0.9}),
    "ngram": Case(table, NGRAM),
    "ngram, sampled, coupled": Case(table, NGRAM, temperature=0.9),
    "ngram, sampled, standard": Case(table, {**NGRAM, **verified_by("standard")}, temperature=0.9, same=False),
    "ngram, sampled, block": Case(table, {**NGRAM, **verified_by("block")}, temperature=0.9, same=False),
    "eagle chain": Case(table, keys("eagle", 4), perfect),
    "eagle chain, sampled, coupled": Case(table, keys("eagle", 4), perfect, temperature=1.0),
    "eagle chain, sampled, standard": Case(
        table, keys("eagle", 3, **SAMPLED, **verified_by("standard")), perfect, temperature=1.0, same=False
    ),
    "eagle chain, sampled, block": Case(
        table, keys("eagle", 3, **SAMPLED, **verified_by("block")), perfect, temperature=1.0, same=False
    ),
    "eagle tree": Case(table, keys("eagle", 5, speculative_token_tree=STATIC), perfect),
    "eagle tree, sampled, coupled": Case(
        table, keys("eagle", 5, speculative_token_tree=STATIC), perfect, temperature=1.0
    ),
    "eagle tree, sampled, standard": Case(
        table,
        keys("eagle", 5, speculative_token_tree=STATIC, **SAMPLED, **verified_by("standard")),
        perfect,
        temperature=1.0,
        same=False,
    ),
    "eagle tree, dynamic": Case(table, keys("eagle", 8, tree_top_k=2, tree_depth=4), perfect),
    "eagle tree, dynamic, sampled": Case(table, keys("eagle", 8, tree_top_k=2, tree_depth=4), perfect, temperature=1.0),
    "eagle tree, dynamic, sampled, standard": Case(
        table,
        keys("eagle", 8, tree_top_k=2, tree_depth=4, **verified_by("standard")),
        perfect,
        temperature=1.0,
        same=False,
    ),
    "eagle3 chain": Case(llama, keys("eagle3", 4), eagle_3),
    "mtp": Case(mimo, keys("mtp", 3)),
    "medusa chain": Case(llama_2, keys("medusa", 4), medusa),
    "medusa tree": Case(
        llama_2, keys("medusa", 5, speculative_token_tree="[(0,), (1,), (0, 0), (0, 1), (1, 0)]"), medusa
    ),
    "dflash": Case(llama, keys("dflash", 4), dflash("dflash: standard")),
    "dflash2": Case(llama, keys("dflash", 4), dflash("DFlash2")),
}


def _numba_attention(*args: Any, **options: Any) -> torch.Tensor:
    """The CPU's kernel, for steps whose trees were grown on the device as well."""
    step = args[5]
    step.grown = held(step.grown)
    return numba_attention(*args, **options)


@pytest.fixture(autouse=True)
def _kernels_take_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have stretches as short as the vocabularies here, and the CPU's kernels for two, see device_op_checks.py."""
    for module in STRETCHED:
        monkeypatch.setattr(module, "STRETCH", 32)
    monkeypatch.setattr(triton_attention, "attention", as_kernel(_numba_attention))
    monkeypatch.setattr(triton_truncate, "truncate", as_kernel(numba_truncate))


def decoded(case: Case, llm: LLM, tokens: int = 8) -> tuple[list[list[int]], list[list[Wait]]]:
    """Return the ids of all prompts, and what each step waited for."""
    sampling = [
        SamplingParams(
            temperature=case.temperature, max_tokens=tokens + 2 * i, ignore_eos=True, seed=i, **case.sampling
        )
        for i in range(len(PROMPTS))
    ]
    steps: list[list[Wait]] = []
    with llm.start([{"prompt_token_ids": ids} for ids in PROMPTS], sampling) as run:
        while not run.finished:
            with waits() as found:
                run.step()
            steps.append(found)
        return [list(output.outputs[0].token_ids) for output in run.outputs()], steps


@pytest.fixture(scope="module")
def plain_texts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], list[list[int]]]:
    """Return a function that gives the ids of a case without drafts on the CPU, decoded once for all cases alike."""
    known: dict[str, list[list[int]]] = {}

    def texts(case: Case) -> list[list[int]]:
        plain = Case(case.target, None, None, case.temperature, sampling=case.sampling)
        if (key := str(plain)) not in known:
            with plain.engine(tmp_path_factory.mktemp("plain"), "cpu") as llm:
                decoded(plain, llm, 1)  # requests are numbered, and their noise with them
                known[key] = decoded(plain, llm)[0]
        return known[key]

    return texts


@pytest.mark.parametrize("name", CASES)
def test_a_step_reads_once_and_waits_for_nothing_else(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_texts: Callable[[Case], list[list[int]]]
) -> None:
    case = CASES[name]
    with case.engine(tmp_path, NAME) as llm:
        decoded(case, llm, 4)  # what is made at first use
        texts, steps = decoded(case, llm)
        metrics = llm.get_metrics()
    for number, found in enumerate(steps):
        assert len(found) <= case.most, f"step {number} waits {len(found)} times:\n" + "\n".join(map(str, found))
        assert all(wait.kind == "read" for wait in found), found
    assert any(steps), "nothing was read, so nothing was looked at"
    if case.config is not None:
        assert metrics.drafted > 0
        assert metrics.failures == 0
    if case.same:
        monkeypatch.delenv("SPECDEC_KERNELS")  # numba's, which need no interpreter
        assert plain_texts(case) == texts


DYNAMIC = keys("eagle3", 6, tree_top_k=3, tree_depth=3)


@pytest.mark.parametrize("width", [None, 5])
def test_a_tree_whose_form_stays_on_the_device_runs_as_one_that_the_host_knows(
    width: int | None, tmp_path: Path
) -> None:
    """Every row of every step, of a target that knows positions, before the end of the first text."""
    case = Case(llama, {**DYNAMIC, "cut_by_cost": False}, eagle_3, temperature=0.9)
    found = []
    for stays in (True, False):
        steps: list[Any] = []

        def watch(step: Any, steps: list[Any] = steps) -> None:
            rows = [
                (
                    i.start,
                    i.ids.tolist(),
                    None if i.parents is None else i.parents.tolist(),
                    i.accepted.tolist(),
                    i.draft_depth,
                )
                for i in step.items
            ]
            steps.append((rows, step.drawn.positions.tolist(), held(step.logits).clone()))

        with case.engine(tmp_path, NAME, decode_width=width) as llm:
            stepper = llm._engine.stepper
            stepper.speculation.runner._leaves_ids = stays
            sampling = SamplingParams(temperature=0.9, max_tokens=20, ignore_eos=True, seed=3)
            with llm.start([{"prompt_token_ids": ids} for ids in PROMPTS[::2]], sampling) as run:
                run.step()
                stepper.watch = watch
                for _ in range(4):
                    with waits() as waited:
                        run.step()
                    assert len(waited) == (1 if stays else 2), waited  # who does not ask for such drafts reads them
        found.append(steps)
    for mine, theirs in zip(*found, strict=True):
        assert mine[:2] == theirs[:2]
        torch.testing.assert_close(mine[2], theirs[2])
    assert any(depth > 1 for rows, *_ in found[0] for *_, depth in rows)


def test_trees_on_the_device_end_with_the_text_and_leave_no_position_behind_it(tmp_path: Path) -> None:
    """Nodes behind the last position of the target are run at it."""
    case = Case(table, keys("eagle", 8, tree_top_k=2, tree_depth=4), perfect)
    length, seen = 24, []
    texts = []
    for config in (case.config, None):
        with dataclasses.replace(case, config=config).engine(tmp_path, NAME, max_model_len=length) as llm:
            flat = llm._engine.target.flat

            def watched(ids: Any, positions: Any, *rest: Any, run: Any = flat.run) -> Any:
                seen.append(int(positions.max()))
                return run(ids, positions, *rest)

            flat.run = watched
            sampling = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
            outputs = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], sampling)
            texts.append([list(output.outputs[0].token_ids) for output in outputs])
            if config is not None:
                assert llm.get_metrics().accepted > 0
    assert texts[0] == texts[1]
    assert max(seen) < length


ELSEWHERE: dict[str, tuple[Case, dict[str, Any], dict[str, Any]]] = {
    "log-probabilities": (Case(llama_2), {"logprobs": 3, "prompt_logprobs": 2}, {}),
    "penalties and forbidden ids": (
        Case(llama_2, temperature=0.7),
        {"repetition_penalty": 1.3, "presence_penalty": 0.4, "logit_bias": {5: 2.0}, "bad_words": [[7], [3, 4]]},
        {},
    ),
    "min_tokens beside drafts": (Case(table, NGRAM), {"min_tokens": 4, "allowed_token_ids": list(range(2, 22))}, {}),
    "decode width": (Case(table, keys("eagle", 4), perfect), {}, {"decode_width": 5}),
    "few pages": (Case(table, keys("eagle", 4), perfect), {}, {"kv_cache_tokens": 96, "prefill_chunk_size": 8}),
    "a dynamic tree of two words by the definition": (
        Case(table, keys("eagle", 20, tree_top_k=16, tree_depth=6), perfect),
        {},
        {},
    ),
    "typical": (
        Case(table, {**keys("eagle", 3), **verified_by("typical")}, perfect, temperature=0.9, same=False),
        {},
        {},
    ),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_reads_more_often_works_on_a_device_as_well(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No array is made of a tensor of the device, no kernel for CPUs is given one, and no host tensor meets one."""
    case, sampling, options = ELSEWHERE[name]
    if name.endswith("by the definition"):
        monkeypatch.setattr(triton_attention, "attention", attention_reference)
    found = []
    for device in (NAME, "cpu"):
        if device == "cpu":
            monkeypatch.delenv("SPECDEC_KERNELS")
        params = SamplingParams(temperature=case.temperature, max_tokens=7, ignore_eos=True, seed=4, **sampling)
        with case.engine(tmp_path / device, device, **options) as llm:
            outputs = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS[1:]], params)
            assert llm.get_metrics().failures == 0
        found.append([list(output.outputs[0].token_ids) for output in outputs])
        if sampling.get("logprobs"):
            assert all(output.outputs[0].logprobs and output.prompt_logprobs for output in outputs)
    assert found[0] == found[1] or not case.same
    assert all(len(ids) == 7 for ids in found[0])


def test_logits_are_read_in_the_dtype_in_which_the_model_gives_them() -> None:
    """A copy in float32 of all rows would be read and written before any kernel reads them."""
    seen = set()
    model = table_target(TABLE, num_layers=4).to(torch.bfloat16).requires_grad_(False).to(NAME)
    with LLM(hf_model=model, device=NAME, speculative_config=NGRAM, strict=True, max_model_len=64) as llm:
        llm._engine.stepper.watch = lambda step: seen.add((step.out.logits.dtype, step.logits.dtype))
        llm.generate([{"prompt_token_ids": [3, 4, 3, 4]}], SamplingParams(temperature=0.0, max_tokens=6))
    assert seen == {(torch.bfloat16, torch.bfloat16)}
