"""Which ids of the drafter stand for which of the target, and which may be proposed; it compares tokenizers only."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_core.errors import ConfigError
from specdec_plugin_draft_model.tokenizer_files import OTHER_TOKENIZERS, different_ids

Ids = npt.NDArray[np.int64]
FEW: Final = 100  # shared tokens below which drafts will hardly be accepted
SPACES: Final = ("Ġ", "▁")  # how byte-level and metaspace tokenizers spell a leading space
NOT_COMPARED: Final = "the tokenizer of %s is not at hand, so the ids of target and drafter are taken to be the same"

logger = logging.getLogger("specdec_plugin_draft_model")


class Vocabulary:
    """The ids that both sides share, as tables on the drafter's device.

    V ids of the target; C of them are shared and may be proposed, in ascending order of the drafter's ids.

    d2t  [C] int64 offsets: shared id i is target id i + d2t[i]; None where C = V and all are the same
    """

    def __init__(self, shared: Mapping[int, int], vocab_size: int, unknown: int, device: torch.device) -> None:
        """Take target id -> draft id, the number of target ids, and the draft id that stands for all other ones."""
        targets = np.array(sorted(shared, key=shared.__getitem__), np.int64)
        drafts = np.array([shared[token] for token in targets.tolist()], np.int64)
        self.vocab_size = vocab_size
        self._feed = np.full(vocab_size + 1, unknown, np.int64)  # the last entry is of ids out of the vocabulary
        self._feed[targets] = drafts
        self._feed_on = torch.from_numpy(self._feed).to(device)
        count = len(targets)
        own = np.arange(count)
        self._columns = None if np.array_equal(drafts, own) else torch.from_numpy(drafts).to(device)
        self._count = count
        same = count == vocab_size and np.array_equal(targets, own)
        self.d2t: Tensor | None = None if same else torch.from_numpy(targets - own).to(device)
        column = np.zeros(vocab_size, np.int64)
        column[targets] = own
        self._column = torch.from_numpy(column).to(device)

    def __len__(self) -> int:
        """Return how many ids are shared."""
        return self._count

    def spell(self, tokens: npt.NDArray[np.int32]) -> Ids:
        """Return draft ids [n] for target ids [n], also for ids that no table has (placeholders of images)."""
        known = (tokens >= 0) & (tokens < self.vocab_size)
        spelled: Ids = self._feed[np.where(known, tokens, self.vocab_size)]
        return spelled

    def spell_drafts(self, tokens: Tensor) -> Tensor:
        """Return draft ids [a] of drafted target ids [a] on the device."""
        return self._feed_on[tokens]

    def narrow(self, logits: Tensor) -> Tensor:
        """Return the logits [a, C] of shared ids out of the drafter's [a, V_d]."""
        return logits[:, : self._count] if self._columns is None else logits[:, self._columns]

    def probabilities(self, narrowed: Tensor, tokens: Tensor) -> Tensor:
        """Return the drafter's probability [a] of each drafted target id among the shared ones."""
        chosen = narrowed.float().softmax(dim=-1).gather(1, self._column[tokens][:, None])
        return chosen[:, 0]


def same_ids(
    target: Any | None, draft: Any | None, vocab_size: int, draft_size: int, device: torch.device
) -> Vocabulary:
    """Return the vocabulary of a pair whose ids are to be the same, after a look at what each tokenizer calls them.

    Tables may be padded to different sizes: ids without a text are in no tokenizer. Ids of one side alone are legal:
    the drafter never proposes them, and reads its unknown token for those it lacks. Raises ConfigError naming the first
    id that the two spell differently.
    """
    theirs, ours = _texts(target, vocab_size), _texts(draft, draft_size)
    if theirs is None or ours is None:
        logger.warning(NOT_COMPARED, "the target" if theirs is None else "the drafter")
        if vocab_size != draft_size:
            message = (
                f"the drafter has {draft_size} ids and the target {vocab_size}, and without both tokenizers it cannot "
                "be known which are the same; give a folder with a tokenizer (or LLM(tokenizer=...))"
            )
            raise ConfigError(message)
        return Vocabulary({i: i for i in range(vocab_size)}, vocab_size, 0, device)
    differing = [i for i in sorted(theirs.keys() & ours.keys()) if theirs[i] != ours[i]]
    if differing:
        message = f"{different_ids(theirs, ours, differing)}; {OTHER_TOKENIZERS}"
        raise ConfigError(message)
    shared = {i: i for i in theirs.keys() & ours.keys()}
    return Vocabulary(shared, vocab_size, _unknown(draft, draft_size, theirs.keys() - ours.keys()), device)


def intersection(
    target: Any | None, draft: Any | None, vocab_size: int, draft_size: int, device: torch.device
) -> Vocabulary:
    """Return the vocabulary of a pair with different tokenizers: the tokens that both have (TLI, arXiv 2502.05202).

    Raises ConfigError if a tokenizer is missing, if they share nothing, or if the drafter has nothing to read for the
    other tokens.
    """
    need_both(target, draft)
    theirs, ours = _by_text(target, vocab_size), _by_text(draft, draft_size)
    shared = {theirs[text]: ours[text] for text in theirs.keys() & ours.keys()}
    if not shared:
        message = "the tokenizers of target and drafter share no token, so nothing can be drafted"
        raise ConfigError(message)
    if len(shared) < FEW:
        logger.warning("the tokenizers of target and drafter share %d tokens only", len(shared))
    return Vocabulary(shared, vocab_size, _unknown(draft, draft_size, set(theirs.values()) - shared.keys()), device)


def need_both(target: Any | None, draft: Any | None) -> None:
    """Raise ConfigError unless both tokenizers are there."""
    for whose, tokenizer in (("target", target), ("drafter", draft)):
        if not hasattr(tokenizer, "get_vocab"):
            message = f"use_heterogeneous_vocab needs both tokenizers, and the {whose} has none; give it one"
            raise ConfigError(message)


def _texts(tokenizer: Any | None, size: int) -> dict[int, str] | None:
    """Return the text of each id below `size` that has one, None without a tokenizer."""
    if tokenizer is None or not hasattr(tokenizer, "get_vocab"):
        return None
    return {i: text for text, i in tokenizer.get_vocab().items() if i < size}


def _by_text(tokenizer: Any, size: int) -> dict[str, int]:
    """Return ids below `size` by text, a leading space spelled as a space; of two with one text the first met wins."""
    first = tokenizer.convert_ids_to_tokens(tokenizer.encode(" a", add_special_tokens=False))[0]
    space = next((mark for mark in SPACES if first.startswith(mark)), None)
    found: dict[str, int] = {}
    for text, i in tokenizer.get_vocab().items():
        if i < size:
            spelled = " " + text[len(space) :] if space is not None and text.startswith(space) else text
            found.setdefault(spelled, i)
    return found


def _unknown(draft: Any, size: int, lacking: set[int]) -> int:
    """Return the draft id that is read for target ids without a counterpart."""
    for name in ("unk_token_id", "eos_token_id"):
        token = getattr(draft, name, None)
        if isinstance(token, int) and 0 <= token < size:
            return token
    if lacking:
        message = (
            f"the drafter lacks {len(lacking)} tokens of the target, such as id {min(lacking)}, and its tokenizer has "
            "neither an unknown nor an end token to read for them"
        )
        raise ConfigError(message)
    return 0
