"""Through the real engine: text stays what it was, and drafts are the oracle's over a stock forward of that text."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, ClassVar

import mtp_models
import pytest
import torch
from mtp_models import MODELS
from mtp_oracle import Row
from mtp_replay import Compared, oracle_of

from specdec_core.errors import SpecdecError
from specdec_core.sources import TargetInfo
from specdec_engine import LLM, SamplingParams
from specdec_testing.contract import ProposerContract
from specdec_testing.fakes import FakeTarget
from specdec_testing.identity import IdentityContract

PROMPTS = [list(range(3, 24)), [5], [9, 8, 7] * 5]
GREEDY = SamplingParams(temperature=0.0, max_tokens=14, ignore_eos=True)
pytestmark = pytest.mark.filterwarnings("ignore:num_speculative_tokens . is above")


def generated(llm: LLM) -> list[list[int]]:
    results = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], GREEDY)
    return [result.outputs[0].token_ids for result in results]


def stock_states(model: Any, ids: list[int], *, before_norm: bool) -> torch.Tensor:
    """Return the state at each position by transformers' own forward: behind the last norm or in front of it."""
    kept: list[torch.Tensor] = []
    hook = model.model.norm.register_forward_hook(lambda module, args, out: kept.extend([args[0][0], out[0]]))
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            model(torch.tensor([ids]), use_cache=False)
    finally:
        hook.remove()
    return kept[0] if before_norm else kept[1]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "modules"), [*((family, 1) for family in MODELS), ("deepseek", 2)])
def test_drafts_are_those_over_the_targets_own_states(family: str, modules: int, tmp_path: Path) -> None:
    """So it is the right state of the right row that goes in, chunked prompts and rejected drafts included."""
    tensors = mtp_models.module_tensors(family, modules)
    folder = mtp_models.save(tmp_path, family, tensors, modules)
    keys = {"method": "mtp", "num_speculative_tokens": 4}
    with LLM(folder, keys, strict=True, prefill_chunk_size=7, max_num_seqs=2) as llm:
        model = llm._engine.target.model
        drafting = llm._engine.runner
        assert drafting is not None
        comparing = Compared(drafting._proposer, oracle_of(family, folder, tensors, modules))
        seen: list[tuple[str, list[int], list[Row]]] = []
        finish = comparing.finish
        comparing.finish = lambda request, reason: (  # type: ignore[method-assign]
            seen.append((request.id, request.tokens.tolist(), comparing.rows[request.id])),
            finish(request, reason),
        )[1]
        drafting._proposer = comparing
        texts = generated(llm)
    assert comparing.count > 60
    assert comparing.margin > 1e-4
    assert sorted(tokens for _, tokens, _ in seen) == sorted(p + t for p, t in zip(PROMPTS, texts, strict=True))
    for _, tokens, rows in seen:
        states = stock_states(model, tokens, before_norm=family == "mimo")
        for row in rows:
            torch.testing.assert_close(row.state, states[row.position], atol=1e-4, rtol=1e-4)


def test_prompts_have_their_log_probabilities_in_chunks_beside_drafts_row_34(tmp_path: Path) -> None:
    folder = mtp_models.save(tmp_path, "glm4_moe", mtp_models.module_tensors("glm4_moe", 1), 1)
    prompts = [{"prompt_token_ids": [(7 * i + n) % 50 + 1 for i in range(n)]} for n in (3, 17, 40)]
    sampling = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, prompt_logprobs=1)
    found = []
    for keys in (None, {"method": "mtp", "num_speculative_tokens": 3}):
        with LLM(folder, keys, strict=True, prefill_chunk_size=8) as llm:
            found.append(llm.generate(prompts, sampling))
    assert sum(result.metrics.drafted for result in found[1]) > 0
    for plain, fast, prompt in zip(*found, prompts, strict=True):
        assert len(fast.prompt_logprobs) == len(prompt["prompt_token_ids"])
        for one, other in zip(plain.prompt_logprobs, fast.prompt_logprobs, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                assert list(one) == list(other)
                values = ([entry.logprob for entry in at.values()] for at in (one, other))
                assert next(values) == pytest.approx(next(values), abs=1e-4)


class TestContract(ProposerContract):
    @pytest.fixture(params=["longcat", "deepseek"])
    def family(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def folder(self, family: str, tmp_path: Path) -> str:
        modules = 1 + (family == "deepseek")
        return mtp_models.save(tmp_path / "model", family, mtp_models.module_tensors(family, modules), modules)

    @pytest.fixture
    def method(self) -> str:
        return "mtp"

    @pytest.fixture
    def options(self, folder: str) -> dict[str, Any]:
        return {"model": folder}

    @pytest.fixture
    def target(self, family: str, folder: str) -> FakeTarget:
        handle = FakeTarget(mtp_models.target(family))
        handle.info = TargetInfo.from_folder(folder)
        return handle


class Identity(IdentityContract):
    ks: ClassVar = (4,)
    max_tokens: ClassVar = 10
    max_model_len: ClassVar = 160
    modules: ClassVar = 1

    def target(self, family: str, dtype: torch.dtype = torch.float32) -> Any:
        return mtp_models.target(family, dtype)

    @pytest.fixture
    def method(self) -> str:
        return "mtp"

    @pytest.fixture
    def options(self, tmp_path: Path) -> dict[str, Any]:
        tensors = mtp_models.module_tensors(self.families[0], self.modules)
        return {"model": mtp_models.save(tmp_path, self.families[0], tensors, self.modules)}


class TestGlm(Identity):
    families = ("glm4_moe",)


class TestTwoModules(Identity):
    families = ("deepseek",)
    modules = 2


class TestErnieGreedily(Identity):
    families = ("ernie",)


class TestTargetsWithRecurrentLayers(Identity):
    families = tuple(family for family in MODELS if "qwen" in family)


# A target that transformers does not know


def test_a_mimo_is_loaded_as_what_it_is_made_like_and_says_what_a_plain_one_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = mtp_models.save(tmp_path, "mimo", mtp_models.module_tensors("mimo"))
    with LLM(hf_model=mtp_models.target("mimo")) as plain:
        wanted = generated(plain)
    for keys in ({"method": "mtp"}, {"model": folder}):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "specdec_engine"), LLM(folder, keys, strict=True) as llm:
            assert generated(llm) == wanted
            assert type(llm._engine.target.model).__name__ == "Qwen2ForCausalLM"
            assert llm.resolved_config is not None
            assert llm.resolved_config.method == "mtp"
        assert f"does not know model_type 'mimo' of {folder!r}; it is loaded as 'qwen2', as mtp asks" in caplog.text


@pytest.mark.parametrize("keys", [None, {"method": "ngram", "num_speculative_tokens": 2}])
def test_a_mimo_is_loaded_without_its_modules_and_without_a_table_of_them(
    keys: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = mtp_models.save(tmp_path, "mimo", mtp_models.module_tensors("mimo"))
    with LLM(hf_model=mtp_models.target("mimo")) as plain:
        wanted = generated(plain)
    reporting = logging.getLogger("transformers.modeling_utils")
    reporting.addHandler(caplog.handler)  # transformers' loggers do not propagate
    try:
        with LLM(folder, keys) as llm:
            assert generated(llm) == wanted
    finally:
        reporting.removeHandler(caplog.handler)
    assert "mtp_layers" not in "".join(r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING)
    assert reporting.filters == []


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"method": "nothing"}, "cannot be loaded, the configuration cannot be read"),
        ({"methot": "mtp"}, "neither method nor model"),
    ],
)
def test_a_configuration_that_is_wrong_does_not_load_a_mimo(keys: Any, error: str, tmp_path: Path) -> None:
    folder = mtp_models.save(tmp_path, "mimo", mtp_models.module_tensors("mimo"))
    with pytest.raises(SpecdecError, match=error):
        LLM(folder, keys)
