"""Drafts of every layout equal those of an independent re-derivation, through rejections, gaps and preemptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from host import Agreement, Host, Logits, agreement
from layouts import LAYOUTS, LLAMA_3, VOCAB, YARN, Layout
from oracle_head import inverse_frequencies
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specdec_testing.fakes import FakeRequest

# One layout in seven for every change, all of them in `make test`.
SOME_OFTEN = [name if i % 7 == 0 else pytest.param(name, marks=pytest.mark.slow) for i, name in enumerate(LAYOUTS)]

CLEAR = 1e-3  # the least gap between the best and the next logit; float32 is off by far less


def compared(layout: Layout, folder: Path) -> Agreement:
    """Run a checkpoint beside the oracle, and return how far they were compared."""
    head = layout.head()
    proposer, resolved, target = layout.build(folder)
    host, logits = Host(proposer, resolved.traits, target, seed=layout.seed), Logits(proposer)
    found = agreement(host, lambda life, limit: oracle.chain(head, life.rows, limit), logits=logits)
    assert len(found.drafted) == 3
    assert min(found.drafted.values()) > 10
    proposer.close()
    return found


@pytest.mark.parametrize("name", SOME_OFTEN)
def test_chains_and_logits_of_every_layout_are_the_oracles(name: str, tmp_path: Path) -> None:
    found = compared(LAYOUTS[name], tmp_path / "x")
    assert found.margin > CLEAR
    assert found.error < 5e-5


@pytest.mark.parametrize(
    "name", ["eagle-attention-bias", "eagle-llama4-l2-norm", "eagle3-all-norms", "eagle3-narrower"]
)
def test_the_fastest_kernels_of_this_machine_draft_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPECDEC_KERNELS", raising=False)
    found = compared(LAYOUTS[name], tmp_path / "x")
    assert found.margin > CLEAR
    assert found.error < 5e-5


def test_ids_beyond_the_embedding_stand_for_its_last_row_96(tmp_path: Path) -> None:
    """Placeholders of images in a prompt reach the head as known ids, and are never proposed."""
    layout = LAYOUTS["eagle3"]
    head = layout.head()
    proposer, resolved, target = layout.build(tmp_path / "x")
    host = Host(proposer, resolved.traits, target, seed=layout.seed)
    for life in host.waiting:
        tokens = life.view.tokens.copy()
        tokens[1::3] = 10**6
        life.view = FakeRequest(life.view.id, tokens)
    found = agreement(host, lambda life, limit: oracle.chain(head, life.rows, limit))
    assert any(row.token >= VOCAB for life in host.lives for row in life.rows)
    assert min(found.drafted.values()) > 10


ROPES: dict[str, dict[str, Any]] = {
    "nothing": {"rope_theta": None},
    "theta at the top": {"rope_theta": 5e6},
    "theta inside": {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5e6}},
    "llama3 in the old form": {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA_3}},
    "llama3 in the new form": {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e6, **LLAMA_3}},
    "yarn in the old form": {"rope_theta": 1.5e5, "rope_scaling": {"type": "yarn", **YARN}},
    "yarn in the new form": {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, **YARN}},
    "linear": {"rope_scaling": {"type": "linear", "factor": 3.0}},
}


@pytest.mark.parametrize("form", ROPES)
def test_rope_keys_of_both_forms_give_their_frequencies_row_88(form: str, tmp_path: Path) -> None:
    plain = LAYOUTS["eagle3"]
    settings = {key: value for key, value in {**plain.settings, **ROPES[form]}.items() if value is not None}
    proposer, _, _ = Layout("eagle3", "eagle3", settings, plain.tensors).build(tmp_path / "x")
    rotary = proposer._head._rotary  # type: ignore[attr-defined]
    frequencies, scale = inverse_frequencies(settings, 8)
    torch.testing.assert_close(rotary.inv_freq.double(), frequencies, rtol=1e-6, atol=0)
    angles = torch.arange(9.0)[:, None] * frequencies.float()
    torch.testing.assert_close(rotary._cos[:9, :4], (angles.cos() * scale).float(), atol=1e-5, rtol=0)
    if form != "nothing":
        assert not np.allclose(frequencies, inverse_frequencies({}, 8)[0])


@pytest.mark.parametrize("form", ["llama3 in the new form", "yarn in the new form"])
def test_the_oracles_frequencies_are_those_of_transformers(form: str) -> None:
    keys = {**ROPES[form], "max_position_embeddings": 128}
    theirs = LlamaRotaryEmbedding(LlamaConfig(hidden_size=16, num_attention_heads=1, head_dim=16, **keys))
    ours, scale = inverse_frequencies(keys, 16)
    torch.testing.assert_close(theirs.inv_freq.double(), ours, rtol=1e-6, atol=0)
    assert theirs.attention_scaling == pytest.approx(scale)
