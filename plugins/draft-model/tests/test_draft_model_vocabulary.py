"""Which ids target and drafter share: by name, padding apart, and by text (TLI, arXiv 2502.05202)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from draft_model_tokenizers import byte_level, metaspace, numbered

from specdec_core.errors import ConfigError
from specdec_plugin_draft_model.vocabulary import Vocabulary, intersection, same_ids

CPU = torch.device("cpu")
WORDS = [f"w{i}" for i in range(118)]


def table(vocabulary: Vocabulary) -> dict[int, int]:
    """Shared target ids and their draft ids, read off the tables that drafting uses."""
    ids = torch.arange(len(vocabulary))
    targets = ids if vocabulary.d2t is None else ids + vocabulary.d2t
    width = 1 + int(vocabulary.spell_drafts(targets).max())
    drafts = vocabulary.narrow(torch.arange(max(width, len(vocabulary)), dtype=torch.float64)[None])[0].long()
    assert drafts.tolist() == vocabulary.spell_drafts(targets).tolist()
    return dict(zip(targets.tolist(), drafts.tolist(), strict=True))


@pytest.mark.parametrize(("vocab_size", "draft_size"), [(128, 120), (120, 128), (128, 128), (118, 118)])
def test_padding_makes_no_difference_row_58(vocab_size: int, draft_size: int) -> None:
    vocabulary = same_ids(numbered(WORDS), numbered(WORDS), vocab_size, draft_size, CPU)
    assert table(vocabulary) == {i: i for i in range(118)}


def test_two_ids_that_have_changed_places_are_refused_with_the_first_of_them_row_60() -> None:
    swapped = [*WORDS[:10], WORDS[11], WORDS[10], *WORDS[12:]]
    with pytest.raises(ConfigError, match=r"id 10 is 'w10' in the target and 'w11' in the drafter.*2 ids") as error:
        same_ids(numbered(WORDS), numbered(swapped), 128, 128, CPU)
    assert "use_heterogeneous_vocab" in str(error.value)
    again = intersection(numbered(WORDS, unk="w0"), numbered(swapped, unk="w0"), 128, 128, CPU)
    assert {k: v for k, v in table(again).items() if k != v} == {10: 11, 11: 10}


def test_ids_beyond_a_table_are_in_no_vocabulary() -> None:
    """A tokenizer may know more ids than a model has rows; those of the shorter table count."""
    vocabulary = same_ids(numbered(WORDS, unk="w7"), numbered(WORDS, unk="w7"), 100, 90, CPU)
    assert table(vocabulary) == {i: i for i in range(90)}
    assert vocabulary.spell(np.array([5, 89, 90, 99], np.int32)).tolist() == [5, 89, 7, 7]


@pytest.mark.parametrize(("special", "read"), [({"unk": "w3", "eos": "w4"}, 3), ({"eos": "w4"}, 4)])
def test_ids_without_a_counterpart_are_read_as_unknown_or_else_as_the_end(
    special: Mapping[str, str], read: int
) -> None:
    fewer = {i: name for i, name in enumerate(WORDS) if i != 50}
    vocabulary = same_ids(numbered(WORDS), numbered(fewer, **special), 128, 128, CPU)
    assert 50 not in table(vocabulary)
    given = np.array([49, 50, 127, 1_000_000, -1], np.int32)
    assert vocabulary.spell(given).tolist() == [49, read, read, read, read], "placeholders of images as well"


def test_a_drafter_with_nothing_to_read_for_unknown_ids_is_refused() -> None:
    fewer = {i: name for i, name in enumerate(WORDS) if i != 50}
    with pytest.raises(ConfigError, match="lacks 1 tokens of the target, such as id 50"):
        same_ids(numbered(WORDS), numbered(fewer), 128, 128, CPU)
    same_ids(numbered(fewer), numbered(WORDS), 128, 128, CPU)  # ids of the drafter alone need nothing


@pytest.mark.parametrize("missing", ["target", "drafter"])
def test_without_a_tokenizer_ids_are_taken_as_they_are_with_a_warning(
    missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    pair = (None, numbered(WORDS)) if missing == "target" else (numbered(WORDS), None)
    with caplog.at_level(logging.WARNING):
        assert table(same_ids(*pair, 128, 128, CPU)) == {i: i for i in range(128)}
    assert f"tokenizer of the {missing} is not at hand" in caplog.text
    with pytest.raises(ConfigError, match="120 ids and the target 128"):
        same_ids(*pair, 128, 120, CPU)


def by_hand(target: Any, draft: Any, target_space: str, draft_space: str) -> dict[int, int]:
    """The steps of TLI (arXiv 2502.05202), written down anew."""

    def spelled(tokenizer: Any, space: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for text, i in tokenizer.get_vocab().items():
            name = text.replace(space, " ", 1) if text[:1] == space else text
            if name not in found:
                found[name] = i
        return found

    theirs, ours = spelled(target, target_space), spelled(draft, draft_space)
    return {i: ours[name] for name, i in theirs.items() if name in ours}


def test_tokens_of_two_kinds_of_tokenizers_meet_in_their_text() -> None:
    target, draft = byte_level(), metaspace()
    sizes = len(target.get_vocab()), len(draft.get_vocab())
    vocabulary = intersection(target, draft, *sizes, CPU)
    expected = by_hand(target, draft, "Ġ", "▁")
    assert table(vocabulary) == expected
    assert target.convert_tokens_to_ids("Ġthe") in expected
    assert expected[target.convert_tokens_to_ids("Ġthe")] == draft.convert_tokens_to_ids("▁the")
    back = table(intersection(draft, target, *sizes[::-1], CPU))
    assert back == {ours: theirs for theirs, ours in expected.items()}


def test_ids_that_the_models_have_no_rows_for_are_not_shared() -> None:
    target, draft = byte_level(), metaspace()
    few = table(intersection(target, draft, 300, 280, CPU))
    every = by_hand(target, draft, "Ġ", "▁")
    assert few == {theirs: ours for theirs, ours in every.items() if theirs < 300 and ours < 280}


def test_few_shared_tokens_are_warned_of_and_none_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    others = [f"x{i}" for i in range(100)]
    with caplog.at_level(logging.WARNING):
        intersection(numbered(WORDS), numbered([*others, *WORDS[:5]], unk="x0"), 128, 128, CPU)
    assert "share 5 tokens only" in caplog.text
    with pytest.raises(ConfigError, match="share no token"):
        intersection(numbered(WORDS), numbered(others, unk="x0"), 128, 128, CPU)
    for pair in ((None, numbered(WORDS)), (numbered(WORDS), None)):
        with pytest.raises(ConfigError, match="needs both tokenizers"):
            intersection(*pair, 128, 128, CPU)


def test_probabilities_are_those_of_drafted_tokens_among_the_shared_ones() -> None:
    vocabulary = Vocabulary({5: 2, 0: 0, 3: 7}, 6, 1, CPU)
    logits = torch.randn(3, 9, generator=torch.Generator().manual_seed(0))
    shared = logits[:, [0, 2, 7]].softmax(-1)
    got = vocabulary.probabilities(vocabulary.narrow(logits), torch.tensor([3, 0, 5]))
    torch.testing.assert_close(got, torch.stack([shared[0, 2], shared[1, 0], shared[2, 1]]))
