"""What `model.generate` hands to `specdec_engine.generate`: applied as generate applies it, or refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from generate_calls import CACHE, Recorder, StopsAt, batch, look, ours, settings
from runs import target
from transformers import DynamicCache, GenerationConfig
from transformers.generation import LogitsProcessor, logits_process

from specdec_core.errors import ConfigError, RequestError
from specdec_engine import generate
from specdec_engine.hf_generate import arguments as generate_arguments
from specdec_engine.hf_generate.kept_engine import engine_of
from specdec_testing.goodness_of_fit import assert_follows
from specdec_testing.table import random_table, table_target


class EveryTenth(LogitsProcessor):
    """A processor that looks at lengths and ids."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for ids, row in zip(input_ids, scores, strict=True):
            row[(len(ids) + int(ids[-1])) % 10 :: 10] -= 4.0
        return scores


class OfOurs:
    """The same by the engine's own protocol."""

    def apply(self, prefix: Any, logits: torch.Tensor) -> torch.Tensor:
        logits[(len(prefix) + int(prefix[-1])) % 10 :: 10] -= 4.0
        return logits


def test_a_processor_of_the_engines_own_protocol_is_taken_as_well(llama: Any) -> None:
    inputs = batch((12,))
    expected = llama.generate(**inputs, **settings(logits_processor=[EveryTenth()]))
    assert torch.equal(ours(llama, **inputs, **settings(logits_processor=[OfOurs()])), expected)
    assert not torch.equal(expected, llama.generate(**inputs, **settings()))


def odd_rows_differ(row: int, ids: torch.Tensor) -> list[int]:
    return list(range(3 + row % 2, 128, 2))


PROCESSED: dict[str, dict[str, Any]] = {
    "repetition penalty": {"repetition_penalty": 1.7},
    "n-grams not repeated": {"no_repeat_ngram_size": 2},
    "bad words": {"bad_words_ids": [[i] for i in range(60)] + [[70, 71]]},
    "least length": {"min_new_tokens": 12, "eos_token_id": list(range(30))},
    "suppressed": {"suppress_tokens": list(range(64)), "begin_suppress_tokens": list(range(64, 100))},
    "bias of sequences": {"sequence_bias": [[[i], 3.0] for i in range(50, 60)]},
    "forced end": {"forced_eos_token_id": 77, "eos_token_id": 77},
    "end grows likely": {"exponential_decay_length_penalty": (4, 1.9), "eos_token_id": 77},
    "allowed by prefix": {"prefix_allowed_tokens_fn": odd_rows_differ},
    "of the caller": {"logits_processor": [EveryTenth()]},
    "several": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "logits_processor": [EveryTenth()]},
}


@pytest.fixture(scope="module")
def llama() -> Any:
    """One model, whose engine is kept from test to test."""
    return target("llama")


@pytest.mark.parametrize("name", PROCESSED)
def test_whatever_generate_makes_of_its_arguments_is_applied_to_each_row(llama: Any, name: str) -> None:
    for lengths in ((12,), (14, 9, 5)):  # without padding, and with it
        inputs, chosen = batch(lengths), settings(**PROCESSED[name])
        expected = llama.generate(**inputs, **chosen)
        assert not torch.equal(expected, llama.generate(**inputs, **settings())), "the argument does something here"
        assert torch.equal(ours(llama, **inputs, **chosen), expected)


def test_a_processor_that_fails_is_an_error_that_names_the_row_and_the_model_is_given_back(llama: Any) -> None:
    before = look(llama)

    def stuck(row: int, ids: torch.Tensor) -> list[int]:
        return [] if row == 1 and len(ids) > 17 else list(range(128))

    with pytest.raises(RequestError, match=r"row 1 of generate's batch cannot go on: .*returned an empty list"):
        ours(llama, **batch((14, 9, 5)), **settings(prefix_allowed_tokens_fn=stuck))
    assert look(llama) == before


REFUSED: dict[str, dict[str, Any]] = {
    "num_beams": {"num_beams": 2},
    "guidance_scale": {"guidance_scale": 2.0},
    "prompt_lookup_num_tokens": {"prompt_lookup_num_tokens": 3},
    "output_attentions": {"output_attentions": True, "return_dict_in_generate": True},
    "output_hidden_states": {"output_hidden_states": True, "return_dict_in_generate": True},
    "output_scores": {"output_scores": True, "return_dict_in_generate": True},
    "output_logits": {"output_logits": True, "return_dict_in_generate": True},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 1.5},
    "cache_implementation": {"cache_implementation": "offloaded"},
    CACHE: {CACHE: DynamicCache()},
    "position_ids": {"position_ids": torch.arange(3, 17).unsqueeze(0)},
    "synced_gpus": {"synced_gpus": True},
    "engine_args has dtype": {"engine_args": {"dtype": "float32"}},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name_and_nothing_is_left(name: str) -> None:
    model, inputs = target("llama"), batch((14,))
    with pytest.raises(RequestError, match=name):
        ours(model, **inputs, **{**settings(), **REFUSED[name]})
    assert engine_of(model) is None


def test_an_assistant_and_a_streamer_for_many_rows_are_refused_though_generate_drops_them() -> None:
    model = target("llama")
    with pytest.raises(RequestError, match="assistant_model"):
        ours(model, **batch((14,)), **settings(), assistant_model=target("llama"))
    with pytest.raises(RequestError, match="streamer for 2 rows"):
        ours(model, **batch((14, 9)), **settings(), streamer=Recorder())


def test_input_that_cannot_run_is_refused_before_anything_runs() -> None:
    model = target("llama")
    embeds = model.get_input_embeddings()(batch((14,))["input_ids"]).detach()
    with pytest.raises(RequestError, match="inputs_embeds"):
        ours(model, inputs_embeds=embeds, **settings())
    empty = batch((14, 9))
    empty["attention_mask"][1] = 0
    with pytest.raises(RequestError, match="row 1 of input_ids is all padding"):
        ours(model, **empty, **settings())
    with pytest.raises(ConfigError, match="num_speculative_token"):
        ours(model, {"method": "ngram", "num_speculative_token": 4}, **batch((14,)), **settings())
    with pytest.raises(RequestError, match="pass pad_token_id"):
        ours(model, **batch((14, 9)), **settings(pad_token_id=None), stopping_criteria=[StopsAt(3)])
    with pytest.raises(RequestError, match="called by transformers"):
        generate(model, batch((14,))["input_ids"])


def test_an_assistant_that_cannot_be_seen_is_no_reason_to_go_on_without_it(llama: Any) -> None:
    with pytest.raises(RequestError, match=r"did not find assistant_model, streamer, synced_gpus .* transformers \d"):
        generate(llama, batch((14,))["input_ids"], generation_config=GenerationConfig())


def test_arguments_are_found_below_wrappers_of_the_callers_own(llama: Any) -> None:
    def deep(levels: int, *args: Any, **kwargs: Any) -> Any:
        return deep(levels - 1, *args, **kwargs) if levels else generate(*args, **kwargs)

    def wrapped(*args: Any, speculative_config: Any = None, **kwargs: Any) -> Any:
        return deep(20, *args, speculative_config=speculative_config, **kwargs)

    recorder, inputs = Recorder(), batch((14,))
    found = llama.generate(**inputs, **settings(), custom_generate=wrapped, streamer=recorder)
    assert [put for puts in recorder.puts[1:] for put in puts] == found[0, 14:].tolist()
    with pytest.raises(RequestError, match="assistant_model"):
        llama.generate(**inputs, **settings(), custom_generate=wrapped, assistant_model=llama)


@pytest.mark.slow
@pytest.mark.parametrize("right", [False, True], ids=["padded on the left", "padded on the right"])
def test_a_penalty_that_ignores_a_number_of_ids_for_each_row_ignores_them(llama: Any, right: bool) -> None:
    inputs = batch((14, 9, 5), right=right)
    for ignored in (None, 7, torch.tensor([0, 5, 9]), torch.tensor([3, 5, 0])):
        alone = []
        for row in range(3):
            length = ignored if not isinstance(ignored, torch.Tensor) else int(ignored[row])
            penalty = logits_process.RepetitionPenaltyLogitsProcessor(1.7, length)
            mine = {name: value[row : row + 1] for name, value in inputs.items()}
            alone.append(ours(llama, **mine, **settings(logits_processor=[penalty]))[0].tolist())
        penalty = logits_process.RepetitionPenaltyLogitsProcessor(1.7)
        penalty.prompt_ignore_length = ignored
        assert ours(llama, **inputs, **settings(logits_processor=[penalty])).tolist() == alone


def test_every_field_of_a_generation_config_is_honoured_without_effect_or_refused() -> None:
    known = [generate_arguments.HONOURED_FIELDS, generate_arguments.WITHOUT_EFFECT, generate_arguments.REFUSED_FIELDS]
    fields = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    assert fields - set().union(*known) == set()
    assert sum(map(len, known)) == len(set().union(*known)), "each is in one place"


WARPED: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "temperature": ({"temperature": 0.6}, [logits_process.TemperatureLogitsWarper(0.6)]),
    "top_k": ({"top_k": 3}, [logits_process.TopKLogitsWarper(3)]),
    "top_p": ({"top_p": 0.7}, [logits_process.TopPLogitsWarper(0.7)]),
    "min_p": ({"min_p": 0.3}, [logits_process.MinPLogitsWarper(0.3)]),
    "typical_p": ({"typical_p": 0.6}, [logits_process.TypicalLogitsWarper(0.6)]),
    "several": (
        {"temperature": 1.4, "top_k": 6, "top_p": 0.8},
        [
            logits_process.TemperatureLogitsWarper(1.4),
            logits_process.TopKLogitsWarper(6),
            logits_process.TopPLogitsWarper(0.8),
        ],
    ),
    "top_p and min_p": (
        {"top_p": 0.75, "min_p": 0.15},
        [logits_process.TopPLogitsWarper(0.75), logits_process.MinPLogitsWarper(0.15)],
    ),
}


@pytest.fixture(scope="module")
def table() -> Any:
    """A distribution for each id of a vocabulary of ten, and the model that has it."""
    distribution = random_table(10, seed=5)
    return distribution, table_target(distribution)


@pytest.mark.slow
@pytest.mark.parametrize("name", WARPED)
def test_sampled_ids_follow_the_distribution_that_generates_own_warpers_leave(table: Any, name: str) -> None:
    (distribution, model), (chosen, warpers) = table, WARPED[name]
    scores = torch.from_numpy(np.log(distribution)).float()
    for warper in warpers:
        scores = warper(None, scores)
    torch.manual_seed(3)
    found = ours(
        model,
        input_ids=torch.tensor([[1, 2, 3, 1, 2]]),
        **settings(do_sample=True, max_new_tokens=6, num_return_sequences=250, **chosen),
    )
    counts = np.zeros(distribution.shape)
    np.add.at(counts, (found[:, 4:-1].flatten().numpy(), found[:, 5:].flatten().numpy()), 1)
    assert_follows(counts, torch.softmax(scores, dim=-1).numpy())
    assert engine_of(model).get_metrics().accepted > 0


def test_the_usual_warpers_become_parameters_of_the_sampler_and_others_run_as_they_are() -> None:
    prompt = torch.tensor([1, 2, 3])
    kinds = logits_process

    def parameters(*prepared: Any, padding: int = 0, do_sample: bool = True) -> Any:
        config, real = GenerationConfig(do_sample=do_sample), torch.arange(3) >= padding
        config._eos_token_tensor = None
        return generate_arguments.sampling_of(config, prepared, prompt, 0, real=real, max_tokens=5)

    penalty = kinds.RepetitionPenaltyLogitsProcessor(1.5)
    usual = (penalty, kinds.TemperatureLogitsWarper(0.5), kinds.TopKLogitsWarper(7), kinds.TopPLogitsWarper(0.9))
    found = parameters(*usual)
    values = (found.repetition_penalty, found.temperature, found.top_k, found.top_p)
    assert (values, found.logits_processors) == ((1.5, 0.5, 7, 0.9), None)
    assert parameters(*usual, padding=1).repetition_penalty == 1.0, "generate counts padding, the sampler does not"
    for ignored, padding, taken in ((1, 1, 1.5), (1, 0, 1.0), (2, 1, 1.0), (0, 0, 1.5)):
        found = parameters(kinds.RepetitionPenaltyLogitsProcessor(1.5, ignored), padding=padding)
        assert (found.repetition_penalty, found.logits_processors is None) == (taken, taken == 1.5)
    ours_only = type("Ours", (), {"apply": lambda self, prefix, logits: logits})()
    found = parameters(penalty, EveryTenth(), ours_only, kinds.TopKLogitsWarper(7))
    assert (found.repetition_penalty, found.top_k, found.logits_processors[1:]) == (1.5, 7, [ours_only])
    for prepared in (
        (kinds.TopKLogitsWarper(7, min_tokens_to_keep=2),),
        (kinds.TopKLogitsWarper(7, filter_value=-9.0),),
        (kinds.TopPLogitsWarper(0.9), kinds.TopKLogitsWarper(7)),
        (kinds.TopPLogitsWarper(0.9), kinds.MinPLogitsWarper(0.1)),
        (kinds.TopKLogitsWarper(7), kinds.TypicalLogitsWarper(0.5)),
    ):
        found = parameters(*prepared)
        assert (found.top_k, found.top_p, found.min_p, len(found.logits_processors)) == (0, 1.0, 0.0, 1), prepared
    assert parameters(kinds.TemperatureLogitsWarper(0.5), do_sample=False).temperature == 0.0
