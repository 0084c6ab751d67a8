"""Where transformers has MTP modules of its own, they draft the same, in every round of a text of the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mtp_models
import pytest
import torch
import transformers
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from specdec_core.draft import BatchView, Draft
from specdec_engine import LLM, SamplingParams

PROMPTS = [list(range(3, 24)), [5, 6], [9, 8, 7] * 5]


class Seen:
    """Passes calls of a proposer on and keeps, for each row that may draft, the known ids and what was drafted."""

    def __init__(self, inner: Any) -> None:
        self.rounds: list[tuple[list[int], list[int]]] = []
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def propose(self, batch: BatchView) -> Draft:
        draft: Draft = self._inner.propose(batch)
        start = 0
        for view, length in zip(batch.requests, draft.lengths or (), strict=True):
            if length:
                self.rounds.append((view.tokens.tolist(), draft.tokens[start : start + length].tolist()))
            start += length
        return draft


def theirs(folder: str, modules: int) -> tuple[Any, MtpModel]:
    """Return transformers' own target and modules.

    Which layers are modules it takes from the patterns of the released models' layer numbers. It does not replace the
    first row's embedding by zeros, as the formats say and vLLM does: done here in front of the norm.
    """
    main = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    main._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{mtp_models.LAYERS + i}.*" for i in range(modules)]
    own = MtpModel.from_pretrained(main).eval()
    for layer in own.layers:
        layer.enorm.register_forward_pre_hook(
            lambda module, args: (torch.cat([0 * args[0][:, :1], args[0][:, 1:]], 1),)
        )
    return main, own


@pytest.mark.parametrize(("family", "modules"), [("deepseek", 1), ("deepseek", 2), ("deepseek", 3), ("glm4_moe", 1)])
def test_drafts_are_those_of_transformers_own_modules(family: str, modules: int, tmp_path: Path) -> None:
    folder = mtp_models.save(tmp_path, family, mtp_models.module_tensors(family, modules), modules)
    with LLM(folder, {"method": "mtp"}, strict=True, prefill_chunk_size=8) as llm:
        assert llm._engine.runner is not None
        seen = Seen(llm._engine.runner._proposer)
        llm._engine.runner._proposer = seen  # type: ignore[assignment]
        params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
        llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], params)
    assert max(len(drafts) for _, drafts in seen.rounds) == modules
    assert len(seen.rounds) > 20
    main, own = theirs(folder, modules)
    with torch.inference_mode():
        for known, drafts in seen.rounds:
            ids = torch.tensor([known])
            states = main(ids[:, :-1], output_hidden_states=True, use_cache=False).hidden_states[-1]
            tokens, logits, _ = own(
                input_ids=ids[:, 1:],
                last_hidden_states=states,
                attention_mask=None,
                position_ids=torch.arange(1, ids.shape[1])[None],
                mtp_cache=MtpCache(config=main.config.get_mtp_config()),
            )
            best = logits[0].topk(2).values
            assert float((best[:, 0] - best[:, 1]).min()) > 1e-4
            assert drafts == tokens[0, : len(drafts)].tolist()
