"""How far two vocabularies of one tokenizer may differ in size; no torch."""

from __future__ import annotations

from typing import Final

PADDING: Final = 1024  # the most ids by which two tables of one tokenizer differ; more is another tokenizer


def table_problem(what: str, rows: int, vocab_size: int) -> str | None:
    """Return why a table cannot be one of the target's ids, None if padding explains its number of rows.

    `what` names the table, `rows` are its own, `vocab_size` the target's.
    """
    if abs(rows - vocab_size) <= PADDING:
        return None
    return f"{what} is for {rows} ids and the target has {vocab_size}, which is more than padding explains"
