"""From `model` to a draft checkpoint: a path, an installed draft by its name, or a hub id; and k from its card."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from specdec_core.config.resolution import Resolution
from specdec_core.errors import ConfigError
from specdec_core.registry.drafts import CARD, K, meant, read_card
from specdec_core.sources import Default, DraftSource


def draft_meant(resolution: Resolution) -> DraftSource:
    """Return the checkpoint that the configuration's `model` stands for; raises what `registry.drafts.meant` raises."""
    config = resolution.config
    assert config.model is not None
    found = meant(resolution.registry.catalog, config.model)
    if found.draft is not None:
        resolution.decide("model", found.model, found.note)
    resolution.model_note = found.note
    source = DraftSource(found.model, revision=config.revision)
    if found.draft is None and found.note:
        _check_is_checkpoint(source, found.note)
    return source


def _check_is_checkpoint(source: DraftSource, note: str) -> None:
    """Raise ConfigError, with the note, for a path that is no checkpoint and keeps a draft of its name from use."""
    try:
        _ = source.hf_config
    except ConfigError as error:
        message = f"{error}; {note}"
        raise ConfigError(message) from error


def card_defaults(draft: DraftSource | None) -> Iterator[Default]:
    """Yield k as the card beside a local checkpoint has it; raises ConfigError for a card that cannot be used."""
    folder = None if draft is None else Path(draft.model).expanduser()
    card = read_card(folder) if folder is not None and folder.is_dir() else None
    if card is not None and card.num_speculative_tokens is not None:
        yield Default(key=K, value=card.num_speculative_tokens, reason=f"{CARD} of the checkpoint")
