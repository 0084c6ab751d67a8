"""Tiny targets are what the tests of everything else rest on: varied, decided, the same every time."""

import pytest
import torch

from specdec_testing.families import FAMILIES, POSITIONS, RIGHT, VOCAB
from specdec_testing.targets import tiny_config, tiny_target

MAIN = ("llama", "gpt2", "qwen3", "gemma3", "mistral", "gpt_oss")


def greedy(model, prompt, count=48):
    """Decode greedily; return the output ids and the margin of each between the two best logits."""
    ids, margins = torch.tensor([prompt]), []
    with torch.inference_mode():
        for _ in range(count):
            best = model(ids, use_cache=False).logits[0, -1].float().topk(2)
            margins.append(float(best.values[0] - best.values[1]))
            ids = torch.cat([ids, best.indices[:1][None]], dim=1)
    return ids[0, len(prompt) :].tolist(), margins


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_the_same_on_every_call_and_differ_by_seed(family):
    first, again, other = (tiny_target(family, seed=seed) for seed in (0, 0, 1))
    weights = [dict(model.state_dict()) for model in (first, again, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    head = first.get_output_embeddings().weight
    assert not torch.equal(head, other.get_output_embeddings().weight)
    assert not first.training


def test_global_random_state_is_neither_used_nor_disturbed():
    torch.manual_seed(1)
    first = tiny_target("gpt_oss")
    expected_next = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3), expected_next)
    torch.manual_seed(2)
    again = tiny_target("gpt_oss")
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("family", RIGHT)
def test_greedy_text_is_varied_and_decided(family):
    model = tiny_target(family)
    generator = torch.Generator().manual_seed(1)
    for length in (1, 7, 40):
        output, margins = greedy(model, torch.randint(3, VOCAB, (length,), generator=generator).tolist())
        assert len(set(output)) >= 10
        assert sum(margin < 1e-4 for margin in margins) <= 1  # float32 noise is about 1e-6 here
        assert sorted(margins)[len(margins) // 2] > 0.3


@pytest.mark.parametrize("family", RIGHT)
def test_text_depends_on_more_than_the_newest_ids(family):
    model = tiny_target(family)
    prompt = torch.randint(3, VOCAB, (1, 14), generator=torch.Generator().manual_seed(2))
    changed = prompt.clone()
    changed[0, 2] = (changed[0, 2] + 11) % VOCAB
    with torch.inference_mode():
        logits = [model(ids, use_cache=False).logits[0, -1] for ids in (prompt, changed)]
    assert float((logits[0] - logits[1]).abs().max()) > 0.05


@pytest.mark.parametrize("family", ["mistral", "gemma3", "gpt_oss"])
def test_sliding_windows_are_shorter_than_the_prompts_of_tests(family):
    model = tiny_target(family)
    wide = tiny_target(family, sliding_window=POSITIONS)
    wide.load_state_dict(model.state_dict())
    ids = torch.randint(3, VOCAB, (1, 40), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        a, b = (m(ids, use_cache=False).logits[0] for m in (model, wide))
    assert torch.allclose(a[:16], b[:16], atol=1e-4)
    assert float((a[-1] - b[-1]).abs().max()) > 0.05


def test_attention_sinks_matter():
    model, ids = tiny_target("gpt_oss"), torch.randint(3, VOCAB, (1, 12), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        before = model(ids, use_cache=False).logits[0, -1].clone()
        for name, parameter in model.named_parameters():
            if name.endswith("sinks"):
                parameter.fill_(-1e4)
        assert float((model(ids, use_cache=False).logits[0, -1] - before).abs().max()) > 0.05


@pytest.mark.parametrize("family", MAIN)
def test_bfloat16_weights_are_the_rounded_float32_ones(family):
    full, half = tiny_target(family), tiny_target(family, dtype=torch.bfloat16)
    for (name, a), b in zip(full.named_parameters(), half.parameters(), strict=True):
        assert b.dtype == torch.bfloat16, name
        assert torch.allclose(a, b.float(), rtol=2e-2, atol=2e-2), name
    tables = {name: table for name, table in half.named_buffers() if "inv_freq" in name}
    assert all(table.dtype == torch.float32 for table in tables.values())


def test_overrides_reach_the_configuration():
    model = tiny_target("llama", num_hidden_layers=4, eos_token_id=None)
    assert len(model.model.layers) == 4
    assert model.config.eos_token_id is None


def test_an_unknown_family_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="llama"):
        tiny_config("no_such_family")
