"""What the tokenizer.json of target and drafter call their ids, and where the two differ; no torch, no transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from specdec_core.config.checkpoint import locate, read_json_object
from specdec_core.errors import ConfigError
from specdec_core.sources import JSON_FILES, DraftSource, TargetInfo

FILE: Final = "tokenizer.json"
# A host that does not take the tokenizer beside the target's weights notes so in `TargetInfo.extra`.
OTHER_TOKENIZER: Final = "tokenizer"
OTHER_TOKENIZERS: Final = "set use_heterogeneous_vocab to true, or give a drafter of the target's family"


def difference(draft: DraftSource, draft_size: int, target: TargetInfo) -> str | None:
    """Return where the ids of the two have different texts, None if nowhere, or if the files do not tell.

    The files do not tell for a target that came as an object or with another tokenizer than the one beside its weights,
    and where one side has no tokenizer.json. Ids from `draft_size` and the target's vocabulary on are not compared.
    """
    if target.model is None or OTHER_TOKENIZER in target.extra:
        return None
    theirs = texts_of(target.model, target.revision, target.vocab_size)
    ours = texts_of(draft.model, draft.revision, draft_size) if theirs else None
    if not theirs or not ours:
        return None
    differing = [i for i in sorted(theirs.keys() & ours.keys()) if theirs[i] != ours[i]]
    return different_ids(theirs, ours, differing) if differing else None


def different_ids(theirs: Mapping[int, str], ours: Mapping[int, str], differing: list[int]) -> str:
    """Return the sentence about ids that differ; the first of them is named with both texts."""
    first = differing[0]
    return (
        f"target and drafter have different tokenizers: id {first} is {theirs[first]!r} in the target and "
        f"{ours[first]!r} in the drafter, the first of {len(differing)} ids that differ"
    )


def texts_of(model: str, revision: str | None, size: int) -> dict[int, str] | None:
    """Return the text of each id below `size`, None for a checkpoint whose JSON files do not tell."""
    try:
        place = locate(model, JSON_FILES, revision)
        file = place / FILE
        return _texts(read_json_object(file), size) if file.is_file() else None
    except ConfigError:  # whoever loads the tokenizer reports a broken one
        return None


def _texts(data: Mapping[str, Any], size: int) -> dict[int, str] | None:
    model = data.get("model")
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    if isinstance(vocabulary, Mapping):
        pairs = [(i, text) for text, i in vocabulary.items()]
    elif isinstance(vocabulary, list):  # a unigram model: texts with their scores, in the order of ids
        pairs = [(i, entry[0]) for i, entry in enumerate(vocabulary) if isinstance(entry, list) and entry]
    else:
        return None
    added = data.get("added_tokens") or ()
    pairs += [(each.get("id"), each.get("content")) for each in added if isinstance(each, Mapping)]
    return {i: text for i, text in pairs if type(i) is int and i < size and isinstance(text, str)}
