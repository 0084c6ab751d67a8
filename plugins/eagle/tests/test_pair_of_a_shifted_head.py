"""`specdec plugins doctor --pair` names what is wrong with a head that works and is then given something else.

The target's next id is its newest one's successor in a ring, and each of its layers turns the residual stream of an id
into another vector. An EAGLE-3 head is solved for that: every first draft is accepted as long as it is given the states
that it was solved for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from specdec_engine.bench.arms import ModelOptions
from specdec_engine.bench.prompts import BenchPrompt
from specdec_engine.pair.session import Examination, Report

VOCAB, WIDTH, LAYERS, AUX = 32, 64, 5, (1, 2, 3)
WORDS = [f"w{i}" for i in range(VOCAB)]
PROMPTS = [BenchPrompt("words", text, "here") for text in ("w4 w9 w20", "w17", "w1 w2 w3 w30")]


def ring() -> Tensor:
    """Return the id that comes after each id [V]."""
    order = torch.randperm(VOCAB - 1, generator=torch.Generator().manual_seed(3)) + 1  # 0 ends a text
    after = torch.zeros(VOCAB, dtype=torch.int64)
    after[order] = order.roll(-1)
    after[0] = order[0]
    return after


AFTER = ring()


def make_target() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=None,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config).eval()
        for name, parameter in model.named_parameters():
            if "mlp" in name:  # as large as the stream itself, so that a layer leaves little of it
                torch.nn.init.normal_(parameter, std=3.0 / parameter.shape[1] ** 0.5)
            elif "o_proj" in name:  # a state depends on its own id alone
                torch.nn.init.zeros_(parameter)
            elif "embed_tokens" in name:
                torch.nn.init.normal_(parameter)
    final = states_of(model)[-1]
    with torch.no_grad():
        wanted = 12.0 * torch.eye(VOCAB)[AFTER]
        model.lm_head.weight.copy_((torch.linalg.pinv(final) @ wanted).T)
    return model


def states_of(model: Any) -> list[Tensor]:
    """Return R_0 .. R_(L - 1), and the final state, of each id [V, H]."""
    with torch.no_grad():
        found: list[Tensor] = list(model(torch.arange(VOCAB)[:, None], output_hidden_states=True).hidden_states)
    return [each[:, 0] for each in found]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shifted") / "target"
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    make_target().save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w0").save_pretrained(folder)
    return folder


def write_head(
    target: Path,
    folder: Path,
    *,
    ahead: int = 2,
    rows: Tensor | None = None,
    said: Tensor | None = None,
    gain: float = 1.0,
) -> Path:
    """Write a head that drafts the id `ahead` of that of the state.

    rows  the ids of its output head [V_d]; `said` are those that its map tells instead
    gain  factor of fc, which the norm behind it takes out again
    """
    model = transformers.LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
    states = states_of(model)
    drafted = torch.arange(VOCAB)
    for _ in range(ahead - 1):
        drafted = AFTER[drafted]  # whose final state the output head reads the id after it of
    # Of layers one lower or one higher it makes other ids. As a residual stream has most of what is in the next one,
    # those states would do as well otherwise.
    read = torch.cat([torch.cat([states[k + shift] for k in AUX], dim=1) for shift in (0, -1, 1)])
    wanted = states[-1][torch.cat([drafted, drafted.roll(5), drafted.roll(11)])]
    tensors = checkpoints.eagle_3(WIDTH, vocab=VOCAB, draft_vocab=VOCAB)
    tensors = {name: 0 * t if "o_proj" in name or "down_proj" in name else t for name, t in tensors.items()}
    tensors["fc.weight"] = gain * (torch.linalg.pinv(read) @ wanted).T
    tensors["norm.weight"] = torch.ones(WIDTH)
    tensors["lm_head.weight"] = model.lm_head.weight.detach().clone()
    keys: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": list(AUX)}
    if rows is not None:
        tensors["lm_head.weight"] = tensors["lm_head.weight"][rows]
        tensors["d2t"] = (rows if said is None else said) - torch.arange(len(rows))
        keys["draft_vocab_size"] = len(rows)
    folder.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(checkpoints.config(WIDTH, **keys)))
    return folder


def examine(target: Path, head: Path, dtype: str = "float32", **keys: Any) -> Report:
    return Examination(
        model=ModelOptions(model=str(target), dtype=dtype, plugins={}),
        draft=str(head),
        more={"method": "eagle3", "num_speculative_tokens": 1, **keys},
        prompts=PROMPTS,
        max_tokens=40,
        chat=False,
    ).run()


def test_the_head_works(target: Path, tmp_path: Path) -> None:
    report = examine(target, write_head(target, tmp_path / "head"))
    assert (report.verdict, report.hints, report.tried[0].first) == ("good", [], 1.0)


@pytest.mark.parametrize("shift", [-1, 1])
def test_aux_layers_shifted_by_one_are_named_with_the_right_ones(shift: int, target: Path, tmp_path: Path) -> None:
    shifted = [layer + shift for layer in AUX]
    report = examine(target, write_head(target, tmp_path / "head"), eagle_aux_hidden_state_layer_ids=shifted)
    assert report.verdict == "bad"
    (hint,) = report.hints
    assert f"1.00 with aux layers {-shift:+d}: the aux layers look shifted by one" in hint
    assert f"after layers {list(AUX)}" in hint


def test_states_of_the_wrong_position_are_named(target: Path, tmp_path: Path) -> None:
    report = examine(target, write_head(target, tmp_path / "head", ahead=3))  # solved for the state before
    assert report.verdict == "bad"
    (hint,) = report.hints
    assert "with the states of the position before: the positions look shifted by one" in hint
    assert (report.tried[-1].first or 0) > 0.9  # all but the first of a text, which has no state before


def test_drafts_of_the_wrong_position_are_named(target: Path, tmp_path: Path) -> None:
    report = examine(target, write_head(target, tmp_path / "head", ahead=1))
    assert report.verdict == "bad"
    (hint,) = report.hints
    assert "1.00 of them are the text's id one position before: the positions look shifted by one" in hint


def test_the_vocabulary_map_of_another_draft_is_named(target: Path, tmp_path: Path) -> None:
    rows = torch.arange(1, VOCAB)
    works = examine(target, write_head(target, tmp_path / "works", rows=rows))
    assert (works.verdict, works.hints) == ("good", [])
    other = torch.cat([rows[7:], rows[:7]])
    report = examine(target, write_head(target, tmp_path / "head", rows=rows, said=other))
    assert report.verdict == "bad"
    (hint,) = report.hints
    assert "the vocabulary map (d2t) looks like that of another draft" in hint
    drafted, meant = report.tried[0].example or (0, 0)
    assert other[meant - 1] == drafted


@pytest.mark.parametrize(
    ("gain", "words"), [(1e8, "dtype: fc.weight has numbers up to"), (1e6, "dtype: made in float32, runs in float16")]
)
def test_a_head_whose_numbers_do_not_fit_the_dtype_is_named_and_fits_another(
    gain: float, words: str, target: Path, tmp_path: Path
) -> None:
    """Its weights are beyond the largest number of float16, or only what they make of the states is."""
    head = write_head(target, tmp_path / "head", gain=gain)
    assert examine(target, head, "bfloat16").verdict == "good"
    report = examine(target, head, "float16")
    assert report.verdict in ("bad", "no drafts")
    (hint,) = report.hints
    assert words in hint and "--dtype" in hint
