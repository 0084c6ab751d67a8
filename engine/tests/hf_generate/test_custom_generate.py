"""`model.generate(custom_generate=specdec_engine.generate)`: the ids of generate, whatever the drafts, and the model
given back as it was."""

from __future__ import annotations

import copy
import gc
import logging
import weakref
from typing import Any

import pytest
import torch
from generate_calls import NGRAM, PAD, STUB, Recorder, StopsAt, batch, look, ours, settings
from runs import target

from specdec_core.errors import RequestError
from specdec_core.traits import MethodTraits
from specdec_engine.hf_generate.kept_engine import engine_of
from specdec_testing.recording import RecordingProposer
from specdec_testing.stubs import Fixed, Garbage, stub_plugin


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [(12,), (14, 9, 5)], ids=["one", "three, padded on the left"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3", "opt"])
def test_greedy_ids_are_those_of_generate(family: str, lengths: tuple[int, ...]) -> None:
    model, inputs = target(family), batch(lengths)
    expected = model.generate(**inputs, **settings())
    arms: list[tuple[Any, dict[str, Any]]] = [(NGRAM, {})]
    if family == "llama":
        arms += [(STUB, {"stub": stub_plugin(Garbage(128))}), (None, {})]
    for config, plugins in arms:
        assert torch.equal(ours(model, config, **inputs, **settings(), plugins=plugins), expected)
        assert engine_of(model).get_metrics().drafted > 0 or config is None


def test_rows_padded_on_the_right_say_what_they_say_alone() -> None:
    model, inputs = target("llama"), batch((14, 9, 5), right=True)
    found = ours(model, **inputs, **settings())
    assert torch.equal(found[:, :14], inputs["input_ids"])
    for row, length in enumerate((14, 9, 5)):
        alone = model.generate(inputs["input_ids"][row : row + 1, :length], **settings())
        assert torch.equal(found[row, 14:], alone[0, length:])


def test_rows_end_at_any_of_the_end_ids_and_are_filled_up_with_padding() -> None:
    model, inputs = target("llama"), batch((14, 9, 5))
    plain = model.generate(**inputs, **settings())[:, 14:]
    ends = [int(plain[0, 5]), int(plain[2, 11])]
    expected = model.generate(**inputs, **settings(eos_token_id=ends))
    assert expected.shape[1] <= 34 and bool((expected[:, 14:] == PAD).any()), "rows of different lengths"
    assert torch.equal(ours(model, **inputs, **settings(eos_token_id=ends)), expected)
    # Without a padding id, the first end id fills up.
    filled = model.generate(**inputs, **settings(eos_token_id=ends, pad_token_id=None))
    assert torch.equal(ours(model, **inputs, **settings(eos_token_id=ends, pad_token_id=None)), filled)


def test_the_models_own_end_id_ends_nothing_when_the_call_names_another() -> None:
    model, inputs = target("llama"), batch((14,))
    plain = model.generate(**inputs, **settings())[0, 14:]
    model.generation_config.eos_token_id = int(plain[3])
    for eos, length in ((model.generation_config.eos_token_id, 4), (int(plain[7]), None)):
        expected = model.generate(**inputs, **settings(eos_token_id=eos))
        assert length is None or expected.shape[1] == 14 + length
        assert torch.equal(ours(model, **inputs, **settings(eos_token_id=eos)), expected)


def test_lengths_are_counted_as_generate_counts_them() -> None:
    model, inputs = target("llama"), batch((14, 9))
    for length in ({"max_length": 17}, {"max_new_tokens": 1}, {"max_length": 17, "min_length": 16}):
        chosen = {**settings(), **length}
        if "max_length" in length:
            del chosen["max_new_tokens"]
        assert torch.equal(ours(model, **inputs, **chosen), model.generate(**inputs, **chosen))


@pytest.mark.parametrize("lengths", [(12,), (14, 9, 5)], ids=["one", "three"])
def test_criteria_end_rows_where_they_would_have_ended_id_by_id(lengths: tuple[int, ...]) -> None:
    model, inputs = target("llama"), batch(lengths)
    chosen = settings(eos_token_id=2, suppress_tokens=None)  # an end id that does not come, so that rows are filled up
    for modulus in (3, 7, 1000):
        theirs, mine = StopsAt(modulus), StopsAt(modulus)
        expected = model.generate(**inputs, **chosen, stopping_criteria=[theirs])
        plugins = {"stub": stub_plugin(Fixed(expected[0, lengths[0] :].tolist()[:4]))}
        for config in (NGRAM, STUB):
            mine.shown.clear()
            found = ours(model, config, **inputs, **chosen, stopping_criteria=[mine], plugins=plugins)
            assert torch.equal(found, expected)
            if len(lengths) == 1:
                assert mine.shown == theirs.shown, "asked once after each id, in order"


def test_a_streamer_gets_the_prompt_then_each_id_then_the_end() -> None:
    model, inputs = target("llama"), batch((14,))
    theirs, mine = Recorder(), Recorder()
    model.generate(**inputs, **settings(), streamer=theirs)
    ours(model, **inputs, **settings(), streamer=mine)
    assert (mine.puts, mine.ended) == (theirs.puts, theirs.ended)
    assert len(mine.puts) == 1 + 20


def test_a_dictionary_has_the_sequences() -> None:
    model, inputs = target("llama"), batch((14, 9))
    found = ours(model, **inputs, **settings(), return_dict_in_generate=True)
    expected = model.generate(**inputs, **settings(), return_dict_in_generate=True)
    assert type(found) is type(expected) and torch.equal(found.sequences, expected.sequences)


def test_a_row_that_would_pass_the_end_of_the_model_ends_there_with_a_warning(caplog: Any) -> None:
    model, inputs = target("llama"), batch((14, 9))
    chosen = settings(max_new_tokens=40)
    expected = model.generate(**inputs, **chosen)
    with caplog.at_level(logging.WARNING, "specdec_engine"):
        found = ours(model, **inputs, **chosen, engine_args={"max_model_len": 32})
    assert any("may emit 18 at most, not 40" in record.getMessage() for record in caplog.records)
    assert found[0, 14:32].tolist() == expected[0, 14:32].tolist()
    assert found[1, 14:37].tolist() == expected[1, 14:37].tolist()
    assert set(found[0, 32:].tolist()) == {PAD} and found.shape[1] == 37


@pytest.mark.parametrize("training", [False, True], ids=["evaluation mode", "training mode"])
def test_the_model_is_given_back_as_it_was(training: bool) -> None:
    model, inputs = target("llama"), batch((14, 9))
    model.train(training)
    model.model.layers[0].eval()
    before, plain = look(model), model.generate(**inputs, **settings())
    traits = MethodTraits(rows="all", hidden=True, aux_layers=(0, 1))
    plugins = {"stub": stub_plugin(RecordingProposer(Garbage(128)), traits=traits)}
    for _ in range(2):
        assert torch.equal(ours(model, STUB, **inputs, **settings(), plugins=plugins), plain)
        assert look(model) == before
    with pytest.raises(RequestError):
        ours(model, STUB, **inputs, **settings(num_beams=2), plugins=plugins)
    assert look(model) == before
    assert torch.equal(model.generate(**inputs, **settings()), plain)


def test_the_engine_is_kept_without_memory_and_made_anew_when_something_changed() -> None:
    model, inputs = target("llama"), batch((14, 9))
    ours(model, **inputs, **settings())
    first = engine_of(model)
    assert first is not None and first.kv_cache_tokens == 0
    ours(model, dict(NGRAM), **batch((30, 9, 9, 4)), **settings(max_new_tokens=60))
    assert engine_of(model) is first, "another batch is no reason"
    ours(model, {**NGRAM, "num_speculative_tokens": 3}, **inputs, **settings())
    second = engine_of(model)
    assert second is not first and first.closed
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.3)
    changed = model.generate(**inputs, **settings())
    assert torch.equal(ours(model, {**NGRAM, "num_speculative_tokens": 3}, **inputs, **settings()), changed)
    third = engine_of(model)
    assert third is not second
    third.close()
    assert torch.equal(ours(model, **inputs, **settings()), changed), "one that was closed is replaced"


def test_the_engine_goes_with_its_model_and_not_with_copies() -> None:
    model, inputs = target("llama"), batch((14,))
    ours(model, **inputs, **settings())
    twin = copy.deepcopy(model)
    assert engine_of(twin) is None and engine_of(model) is not None
    gone = weakref.ref(model), weakref.ref(engine_of(model))
    del model
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


@pytest.mark.slow
def test_seeds_come_from_torch_and_greedy_calls_take_none() -> None:
    model, inputs = target("llama"), batch((14, 9))
    chosen = settings(do_sample=True, num_return_sequences=2)
    runs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        runs.append(ours(model, **inputs, **chosen))
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])
    assert len({tuple(row.tolist()) for row in runs[0]}) == 4, "rows and samples are drawn apart"
    assert not torch.equal(ours(model, **inputs, **chosen), runs[2]), "and so are calls"
    state = torch.get_rng_state()
    ours(model, **inputs, **settings())
    assert torch.equal(torch.get_rng_state(), state)
