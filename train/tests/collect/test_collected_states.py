"""What is collected: states are the target's own at each id, answers are its answers, and end where they should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from collecting import SMALL, collect
from transformers import AutoModelForCausalLM, AutoTokenizer

from specdec_engine import LLM, SamplingParams
from specdec_testing.targets import tiny_target
from specdec_train.collect.decode import Decoder, Job
from specdec_train.collect.states import StateKeeper, StatesPlugin
from specdec_train.data import Data


def test_states_are_those_of_a_fresh_forward_over_the_same_ids(model: Path, tmp_path: Path) -> None:
    collect(model, tmp_path / "data", 2)
    target = AutoModelForCausalLM.from_pretrained(model)
    data = Data(tmp_path / "data")
    requests = [*data.requests(), *data.requests(held_out=True)]
    assert len(requests) > 6
    for request in requests:
        with torch.inference_mode():
            states = target(request.ids[None], use_cache=False, output_hidden_states=True).hidden_states
        close: dict[str, Any] = {"atol": 2e-2, "rtol": 2e-2}  # stored in bfloat16
        torch.testing.assert_close(request.last.float(), states[-1][0], **close)
        early, late = request.aux.float().chunk(2, dim=-1)
        torch.testing.assert_close(early, states[1][0], **close)
        torch.testing.assert_close(target.model.norm(late), states[-1][0], **close)  # R_L, which the last norm reads


@pytest.fixture(scope="module")
def decoding() -> Any:
    keeper = StateKeeper((1,))
    target = tiny_target("llama", eos_token_id=None)
    with LLM(hf_model=target, max_num_seqs=3, enable_prefix_caching=False, **StatesPlugin(keeper).arguments) as llm:
        yield llm, Decoder(llm, keeper, lambda emitted: None), keeper


def jobs(count: int, **given: Any) -> list[Job]:
    usual = {"temperature": 0.0, "max_tokens": 10}
    return [Job([i + 1, 40, 2 * i + 7], seed=i, **{**usual, **given}) for i in range(count)]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_answers_are_those_of_plain_decoding_and_every_id_of_them_has_its_row(
    decoding: Any, temperature: float
) -> None:
    llm, decoder, keeper = decoding
    asked = jobs(7, temperature=temperature)
    params = [SamplingParams(temperature=temperature, seed=job.seed, max_tokens=10) for job in asked]
    with LLM(hf_model=llm.model) as plain:
        expected = [o.outputs[0].token_ids for o in plain.generate([list(job.prompt) for job in asked], params)]
    answers = decoder.answer(asked, frozenset(), states=True)
    assert [answer.ids for answer in answers] == expected
    assert all(answer.end == "length" for answer in answers)
    for answer in answers:
        assert answer.last is not None and answer.aux is not None
        assert len(answer.last) == len(answer.aux) == 3 + len(answer.ids)
    assert not keeper._rows


def test_an_answer_ends_with_the_first_id_that_ends_texts_and_that_id_has_its_row(decoding: Any) -> None:
    _, decoder, _ = decoding
    (whole,) = decoder.answer(jobs(1), frozenset(), states=False)
    end = whole.ids[6]
    (cut,) = decoder.answer(jobs(1), frozenset({end}), states=True)
    assert cut.end == "stop" and cut.ids == whole.ids[: whole.ids.index(end) + 1]
    assert cut.last is not None and len(cut.last) == 3 + len(cut.ids)


def test_the_same_jobs_give_the_same_bytes_whatever_was_decoded_before(decoding: Any) -> None:
    _, decoder, _ = decoding
    first = decoder.answer(jobs(5), frozenset(), states=True)
    decoder.answer(jobs(9, temperature=1.0, max_tokens=17), frozenset(), states=True)
    second = decoder.answer(jobs(5), frozenset(), states=True)
    for one, other in zip(first, second, strict=True):
        assert one.ids == other.ids
        assert one.last is not None and other.last is not None and torch.equal(one.last, other.last)
        assert one.aux is not None and other.aux is not None and torch.equal(one.aux, other.aux)


def test_prompts_are_those_that_the_chat_template_makes(model: Path, tmp_path: Path) -> None:
    asked = ("the cat sat on the mat", "a hat and a cat", "the mat")
    collect(model, tmp_path / "data", 1, prompts=asked)
    tokenizer = AutoTokenizer.from_pretrained(model)
    data = Data(tmp_path / "data")
    requests = sorted([*data.requests(), *data.requests(held_out=True)], key=lambda request: len(request.ids))
    texts = {tokenizer.decode(request.ids[: request.prompt]) for request in requests}
    assert texts == {f"<user>{text}<model>" for text in asked}
    assert {request.task for request in requests} == {"given"}
    assert all(len(request) - request.prompt <= SMALL["max_tokens"] for request in requests)
